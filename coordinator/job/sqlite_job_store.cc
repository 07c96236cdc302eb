#include "coordinator/job/sqlite_job_store.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "coordinator/job/job_messages.h"
#include "esteira/v1/cluster.pb.h"

namespace esteira {
namespace {

using Query = SqliteDatabase::Query;

constexpr int64_t kSchemaVersion = 1;

// The record columns hold messages of cluster.proto.
constexpr char kSchema[] = R"sql(
CREATE TABLE jobs(
  id TEXT PRIMARY KEY, sequence INTEGER NOT NULL UNIQUE, request_id TEXT NOT NULL, name TEXT NOT NULL,
  state TEXT NOT NULL, peak_flops REAL NOT NULL, flops_per_token REAL NOT NULL,
  record BLOB NOT NULL, spec BLOB NOT NULL);
CREATE UNIQUE INDEX jobs_by_request ON jobs(request_id) WHERE request_id <> '';
CREATE INDEX jobs_by_state ON jobs(state);
CREATE TABLE transitions(
  job_id TEXT NOT NULL, number INTEGER NOT NULL, record BLOB NOT NULL,
  PRIMARY KEY(job_id, number)) WITHOUT ROWID;
CREATE TABLE failures(
  job_id TEXT NOT NULL, number INTEGER NOT NULL, record BLOB NOT NULL,
  PRIMARY KEY(job_id, number)) WITHOUT ROWID;
CREATE TABLE steps(
  job_id TEXT NOT NULL, step INTEGER NOT NULL, record BLOB NOT NULL,
  PRIMARY KEY(job_id, step)) WITHOUT ROWID;
CREATE TABLE checkpoints(
  job_id TEXT NOT NULL, number INTEGER NOT NULL, record BLOB NOT NULL,
  PRIMARY KEY(job_id, number)) WITHOUT ROWID;
PRAGMA user_version = 1;
)sql";

constexpr char kJobColumns[] =
    "SELECT sequence, name, peak_flops, flops_per_token, record, spec FROM jobs ";

absl::StatusOr<int64_t> ReadInteger(SqliteDatabase& database, const std::string& sql) {
  Query query(database, sql);
  ASSIGN_OR_RETURN(const bool found, query.Step());
  return found ? query.Integer(0) : 0;
}

absl::Status CheckIntegrity(SqliteDatabase& database, const std::string& path) {
  Query query(database, "PRAGMA quick_check(1)");
  ASSIGN_OR_RETURN(const bool found, query.Step());
  if (found && query.Bytes(0) == "ok") return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("job database ", path, " is damaged: ", found ? query.Bytes(0) : "no answer",
                   ". Restore the file from a copy, or move it away to start without jobs"));
}

template <typename Message>
absl::StatusOr<Message> ParseRecord(const std::string& bytes, const char* what) {
  Message message;
  if (!message.ParseFromString(bytes)) {
    return absl::DataLossError(absl::StrCat("job database: damaged record of a ", what));
  }
  return message;
}

// The job of the current row of a query that begins with kJobColumns.
absl::StatusOr<Job> ReadJob(const Query& query) {
  Job job;
  job.sequence = query.Integer(0);
  job.name = query.Bytes(1);
  job.peak_flops = query.Real(2);
  job.flops_per_token = query.Real(3);
  ASSIGN_OR_RETURN(const v1::Job record, ParseRecord<v1::Job>(query.Bytes(4), "job"));
  DecodeJobSummary(record, job);
  job.spec_bytes = query.Bytes(5);
  return job;
}

absl::Status ReadHistory(SqliteDatabase& database, Job& job) {
  Query transitions(database, "SELECT record FROM transitions WHERE job_id = ? ORDER BY number");
  transitions.BindText(job.id);
  while (true) {
    ASSIGN_OR_RETURN(const bool more, transitions.Step());
    if (!more) break;
    ASSIGN_OR_RETURN(const auto record,
                     ParseRecord<v1::JobTransition>(transitions.Bytes(0), "transition"));
    job.transitions.push_back(DecodeTransition(record));
  }
  Query failures(database, "SELECT record FROM failures WHERE job_id = ? ORDER BY number");
  failures.BindText(job.id);
  while (true) {
    ASSIGN_OR_RETURN(const bool more, failures.Step());
    if (!more) return absl::OkStatus();
    ASSIGN_OR_RETURN(const auto record,
                     ParseRecord<v1::FailureReport>(failures.Bytes(0), "failure"));
    job.failures.push_back(DecodeFailure(record));
  }
}

absl::StatusOr<std::vector<Job>> ReadJobs(SqliteDatabase& database, Query& query) {
  std::vector<Job> jobs;
  while (true) {
    ASSIGN_OR_RETURN(const bool more, query.Step());
    if (!more) break;
    ASSIGN_OR_RETURN(Job job, ReadJob(query));
    jobs.push_back(std::move(job));
  }
  for (Job& job : jobs) RETURN_IF_ERROR(ReadHistory(database, job));
  return jobs;
}

// Numbers rows of one job from 0 in the order in which they come.
absl::Status AppendNumbered(SqliteDatabase& database, const std::string& table,
                            const std::string& job_id, const std::string& record) {
  Query query(database, absl::StrCat("INSERT INTO ", table,
                                     "(job_id, number, record) SELECT ?1, "
                                     "coalesce(max(number) + 1, 0), ?2 FROM ",
                                     table, " WHERE job_id = ?1"));
  return query.BindText(job_id).BindBlob(record).Run();
}

absl::Status WriteFailures(SqliteDatabase& database, const Job& job) {
  Query clear(database, "DELETE FROM failures WHERE job_id = ?");
  RETURN_IF_ERROR(clear.BindText(job.id).Run());
  for (const FailureRecord& failure : job.failures) {
    RETURN_IF_ERROR(
        AppendNumbered(database, "failures", job.id, EncodeFailure(failure).SerializeAsString()));
  }
  return absl::OkStatus();
}

absl::Status Apply(SqliteDatabase& database, const AppendTransition& write) {
  return AppendNumbered(database, "transitions", write.job_id,
                        EncodeTransition(write.transition).SerializeAsString());
}

absl::Status Apply(SqliteDatabase& database, const InsertJob& write) {
  const Job& job = write.job;
  {
    Query query(database, "INSERT INTO jobs VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?)");
    query.BindText(job.id).Bind(job.sequence).BindText(job.request_id).BindText(job.name);
    query.BindText(JobStateName(job.state)).Bind(job.peak_flops).Bind(job.flops_per_token);
    query.BindBlob(EncodeJobSummary(job).SerializeAsString()).BindBlob(job.spec_bytes);
    RETURN_IF_ERROR(query.Run());
  }
  for (const JobTransition& transition : job.transitions) {
    RETURN_IF_ERROR(Apply(database, AppendTransition{job.id, transition}));
  }
  return WriteFailures(database, job);
}

absl::Status Apply(SqliteDatabase& database, const UpdateJob& write) {
  const Job& job = write.job;
  {
    Query query(database,
                "UPDATE jobs SET state = ?, peak_flops = ?, flops_per_token = ?, record = ? "
                "WHERE id = ?");
    query.BindText(JobStateName(job.state)).Bind(job.peak_flops).Bind(job.flops_per_token);
    query.BindBlob(EncodeJobSummary(job).SerializeAsString()).BindText(job.id);
    RETURN_IF_ERROR(query.Run());
  }
  return WriteFailures(database, job);
}

absl::Status Apply(SqliteDatabase& database, const AppendStep& write) {
  Query query(database, "INSERT OR REPLACE INTO steps(job_id, step, record) VALUES(?, ?, ?)");
  query.BindText(write.job_id).Bind(write.record.step);
  return query.BindBlob(EncodeStepRecord(write.record).SerializeAsString()).Run();
}

absl::Status Apply(SqliteDatabase& database, const AppendCheckpoint& write) {
  return AppendNumbered(database, "checkpoints", write.job_id,
                        EncodeCheckpoint(write.checkpoint).SerializeAsString());
}

}  // namespace

absl::StatusOr<std::unique_ptr<SqliteJobStore>> SqliteJobStore::Open(const std::string& path) {
  std::unique_ptr<SqliteJobStore> store(new SqliteJobStore);
  RETURN_IF_ERROR(store->Prepare(path));
  return store;
}

absl::Status SqliteJobStore::Prepare(const std::string& path) {
  absl::MutexLock write_lock(&write_mutex_);
  absl::MutexLock read_lock(&read_mutex_);
  RETURN_IF_ERROR(writer_.Open(path, /*read_only=*/false));
  ASSIGN_OR_RETURN(const int64_t version, ReadInteger(writer_, "PRAGMA user_version"));
  if (version > kSchemaVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "job database ", path, " has schema version ", version, "; this release knows ",
        kSchemaVersion, ". Use the release that wrote it, or a later one"));
  }
  RETURN_IF_ERROR(writer_.Execute("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;"));
  RETURN_IF_ERROR(CheckIntegrity(writer_, path));
  if (version == 0) {
    RETURN_IF_ERROR(writer_.Execute(absl::StrCat("BEGIN IMMEDIATE;", kSchema, "COMMIT;")));
  }
  return reader_.Open(path, /*read_only=*/true);
}

absl::Status SqliteJobStore::Commit(const std::vector<JobWrite>& writes) {
  if (writes.empty()) return absl::OkStatus();
  absl::MutexLock lock(&write_mutex_);
  RETURN_IF_ERROR(writer_.Execute("BEGIN IMMEDIATE"));
  SqliteDatabase& database = writer_;
  absl::Status status;
  for (const JobWrite& write : writes) {
    status = std::visit([&](const auto& change) { return Apply(database, change); }, write);
    if (!status.ok()) break;
  }
  if (status.ok()) status = writer_.Execute("COMMIT");
  // A full disk may have rolled back already; then this fails and changes nothing.
  if (!status.ok()) writer_.Execute("ROLLBACK").IgnoreError();
  return status;
}

absl::StatusOr<Job> SqliteJobStore::Get(const std::string& id) {
  absl::MutexLock lock(&read_mutex_);
  std::vector<Job> jobs;
  {
    Query query(reader_, absl::StrCat(kJobColumns, "WHERE id = ?"));
    query.BindText(id);
    ASSIGN_OR_RETURN(jobs, ReadJobs(reader_, query));
  }
  if (jobs.empty()) return absl::NotFoundError(absl::StrCat("no job \"", id, "\""));
  return std::move(jobs.front());
}

absl::StatusOr<std::optional<Job>> SqliteJobStore::FindRequest(const std::string& request_id) {
  absl::MutexLock lock(&read_mutex_);
  Query query(reader_, absl::StrCat(kJobColumns, "WHERE request_id = ? AND request_id <> ''"));
  query.BindText(request_id);
  ASSIGN_OR_RETURN(std::vector<Job> jobs, ReadJobs(reader_, query));
  if (jobs.empty()) return std::optional<Job>();
  return std::optional<Job>(std::move(jobs.front()));
}

absl::StatusOr<JobPage> SqliteJobStore::List(int page_size, const std::string& page_token) {
  int64_t before = INT64_MAX;
  if (!page_token.empty() && (!absl::SimpleAtoi(page_token, &before) || before < 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "page_token \"", page_token, "\": use the next_page_token of an earlier answer"));
  }
  absl::MutexLock lock(&read_mutex_);
  Query query(reader_,
              absl::StrCat(kJobColumns, "WHERE sequence < ? ORDER BY sequence DESC LIMIT ?"));
  query.Bind(before).Bind(int64_t{page_size} + 1);
  JobPage page;
  ASSIGN_OR_RETURN(page.jobs, ReadJobs(reader_, query));
  if (page.jobs.size() > static_cast<size_t>(page_size)) {
    page.jobs.pop_back();
    page.next_page_token = absl::StrCat(page.jobs.back().sequence);
  }
  return page;
}

absl::StatusOr<std::vector<Job>> SqliteJobStore::ListActive() {
  absl::MutexLock lock(&read_mutex_);
  Query query(
      reader_,
      absl::StrCat(kJobColumns,
                   "WHERE state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED') ORDER BY sequence"));
  return ReadJobs(reader_, query);
}

absl::StatusOr<std::map<std::string, int64_t>> SqliteJobStore::CountByState() {
  absl::MutexLock lock(&read_mutex_);
  Query query(reader_, "SELECT state, count(*) FROM jobs GROUP BY state");
  std::map<std::string, int64_t> counts;
  while (true) {
    ASSIGN_OR_RETURN(const bool more, query.Step());
    if (!more) return counts;
    counts[query.Bytes(0)] = query.Integer(1);
  }
}

absl::StatusOr<int64_t> SqliteJobStore::LastSequence() {
  absl::MutexLock lock(&read_mutex_);
  return ReadInteger(reader_, "SELECT max(sequence) FROM jobs");
}

absl::StatusOr<std::vector<StepRecord>> SqliteJobStore::ListSteps(const std::string& id,
                                                                  int64_t first_step, int limit) {
  absl::MutexLock lock(&read_mutex_);
  Query query(reader_,
              "SELECT record FROM steps WHERE job_id = ? AND step >= ? ORDER BY step LIMIT ?");
  query.BindText(id).Bind(first_step).Bind(int64_t{limit});
  std::vector<StepRecord> records;
  while (true) {
    ASSIGN_OR_RETURN(const bool more, query.Step());
    if (!more) return records;
    ASSIGN_OR_RETURN(const auto record, ParseRecord<v1::StepRecord>(query.Bytes(0), "step"));
    records.push_back(DecodeStepRecord(record));
  }
}

absl::StatusOr<std::vector<CheckpointRecord>> SqliteJobStore::ListCheckpoints(
    const std::string& id) {
  absl::MutexLock lock(&read_mutex_);
  Query query(reader_, "SELECT record FROM checkpoints WHERE job_id = ? ORDER BY number");
  query.BindText(id);
  std::vector<CheckpointRecord> checkpoints;
  while (true) {
    ASSIGN_OR_RETURN(const bool more, query.Step());
    if (!more) return checkpoints;
    ASSIGN_OR_RETURN(const auto record,
                     ParseRecord<v1::CheckpointInfo>(query.Bytes(0), "checkpoint"));
    checkpoints.push_back(DecodeCheckpoint(record));
  }
}

}  // namespace esteira
