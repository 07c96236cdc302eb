// A thin wrapper of SQLite's C interface: prepared statements by their text, and its codes as
// statuses.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

struct sqlite3;
struct sqlite3_stmt;

namespace esteira {

// One connection to one database file. Not thread-safe.
class SqliteDatabase {
 public:
  SqliteDatabase() = default;
  ~SqliteDatabase();
  SqliteDatabase(const SqliteDatabase&) = delete;
  SqliteDatabase& operator=(const SqliteDatabase&) = delete;

  absl::Status Open(const std::string& path, bool read_only);
  // Runs statements that take no values and give no rows.
  absl::Status Execute(const std::string& sql);

  // A prepared statement, ready for its values: db.Query("... WHERE id = ?").Bind(id), then Step
  // until it says false.
  class Query {
   public:
    Query(SqliteDatabase& database, const std::string& sql);
    ~Query();
    Query(const Query&) = delete;
    Query& operator=(const Query&) = delete;

    Query& Bind(int64_t value);
    Query& Bind(double value);
    Query& BindText(absl::string_view value);
    Query& BindBlob(absl::string_view value);

    // True: a row is there. False: no more.
    absl::StatusOr<bool> Step();
    absl::Status Run();  // Step until the end

    int64_t Integer(int column) const;
    double Real(int column) const;
    std::string Bytes(int column) const;

   private:
    SqliteDatabase& database_;
    sqlite3_stmt* statement_ = nullptr;
    int next_value_ = 1;
    int error_ = 0;
  };

  absl::Status Error(int code) const;

 private:
  sqlite3* handle_ = nullptr;
  std::string path_;
  std::map<std::string, sqlite3_stmt*> statements_;
};

}  // namespace esteira
