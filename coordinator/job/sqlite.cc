#include "coordinator/job/sqlite.h"

#include <sqlite3.h>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace esteira {
namespace {

constexpr int kBusyTimeoutMs = 2000;

}  // namespace

SqliteDatabase::~SqliteDatabase() {
  for (const auto& [sql, statement] : statements_) sqlite3_finalize(statement);
  sqlite3_close(handle_);
}

absl::Status SqliteDatabase::Open(const std::string& path, bool read_only) {
  path_ = path;
  const int flags =
      (read_only ? SQLITE_OPEN_READONLY : SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE) |
      SQLITE_OPEN_NOMUTEX;
  const int code = sqlite3_open_v2(path.c_str(), &handle_, flags, nullptr);
  if (code != SQLITE_OK) return Error(code);
  sqlite3_extended_result_codes(handle_, 1);
  sqlite3_busy_timeout(handle_, kBusyTimeoutMs);
  return absl::OkStatus();
}

absl::Status SqliteDatabase::Execute(const std::string& sql) {
  const int code = sqlite3_exec(handle_, sql.c_str(), nullptr, nullptr, nullptr);
  return code == SQLITE_OK ? absl::OkStatus() : Error(code);
}

absl::Status SqliteDatabase::Error(int code) const {
  const std::string message = absl::StrCat(
      "job database ", path_, ": ", handle_ ? sqlite3_errmsg(handle_) : sqlite3_errstr(code));
  switch (code & 0xFF) {
    case SQLITE_FULL:
      return absl::ResourceExhaustedError(absl::StrCat(message, ". Free space on its disk"));
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return absl::UnavailableError(
          absl::StrCat(message, ". Another process holds it; stop that process"));
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return absl::DataLossError(absl::StrCat(
          message, ". Restore the file from a copy, or move it away to start without jobs"));
    case SQLITE_CANTOPEN:
    case SQLITE_PERM:
    case SQLITE_READONLY: return absl::PermissionDeniedError(message);
    default: return absl::UnavailableError(message);
  }
}

SqliteDatabase::Query::Query(SqliteDatabase& database, const std::string& sql)
    : database_(database) {
  sqlite3_stmt*& statement = database.statements_[sql];
  if (statement == nullptr) {
    error_ = sqlite3_prepare_v3(database.handle_, sql.c_str(), static_cast<int>(sql.size()),
                                SQLITE_PREPARE_PERSISTENT, &statement, nullptr);
  }
  statement_ = statement;
}

SqliteDatabase::Query::~Query() {
  if (statement_ == nullptr) return;
  sqlite3_reset(statement_);
  sqlite3_clear_bindings(statement_);
}

SqliteDatabase::Query& SqliteDatabase::Query::Bind(int64_t value) {
  if (error_ == SQLITE_OK) error_ = sqlite3_bind_int64(statement_, next_value_++, value);
  return *this;
}

SqliteDatabase::Query& SqliteDatabase::Query::Bind(double value) {
  if (error_ == SQLITE_OK) error_ = sqlite3_bind_double(statement_, next_value_++, value);
  return *this;
}

SqliteDatabase::Query& SqliteDatabase::Query::BindText(absl::string_view value) {
  if (error_ == SQLITE_OK) {
    error_ = sqlite3_bind_text64(statement_, next_value_++, value.empty() ? "" : value.data(),
                                 value.size(), SQLITE_TRANSIENT, SQLITE_UTF8);
  }
  return *this;
}

SqliteDatabase::Query& SqliteDatabase::Query::BindBlob(absl::string_view value) {
  if (error_ == SQLITE_OK) {
    error_ = sqlite3_bind_blob64(statement_, next_value_++, value.empty() ? "" : value.data(),
                                 value.size(), SQLITE_TRANSIENT);
  }
  return *this;
}

absl::StatusOr<bool> SqliteDatabase::Query::Step() {
  if (error_ != SQLITE_OK) return database_.Error(error_);
  const int code = sqlite3_step(statement_);
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  return database_.Error(code);
}

absl::Status SqliteDatabase::Query::Run() {
  while (true) {
    ASSIGN_OR_RETURN(const bool more, Step());
    if (!more) return absl::OkStatus();
  }
}

int64_t SqliteDatabase::Query::Integer(int column) const {
  return sqlite3_column_int64(statement_, column);
}

double SqliteDatabase::Query::Real(int column) const {
  return sqlite3_column_double(statement_, column);
}

std::string SqliteDatabase::Query::Bytes(int column) const {
  const void* bytes = sqlite3_column_blob(statement_, column);
  const int size = sqlite3_column_bytes(statement_, column);
  return bytes == nullptr ? std::string()
                          : std::string(static_cast<const char*>(bytes), static_cast<size_t>(size));
}

}  // namespace esteira
