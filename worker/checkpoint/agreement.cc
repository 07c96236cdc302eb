#include "worker/checkpoint/agreement.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/checkpoint/tags.h"

namespace esteira {
namespace {

// Fixed sizes, since both sides of a transfer must know them.
constexpr size_t kMessageBytes = 1000;
constexpr size_t kNameBytes = 64;
constexpr size_t kDigestBytes = 64;

struct FileRecord {
  int64_t bytes;
  char name[kNameBytes];
  char sha256[kDigestBytes];
};

struct OutcomeRecord {
  int32_t code;
  int32_t num_files;
  char message[kMessageBytes];
  FileRecord files[RankOutcome::kMaxFiles];
};

void CopyText(absl::string_view text, char* to, size_t capacity) {
  std::copy_n(text.begin(), std::min(text.size(), capacity), to);
}

std::string TextOf(const char* from, size_t capacity) {
  return std::string(from, strnlen(from, capacity));
}

OutcomeRecord Pack(const RankOutcome& outcome) {
  OutcomeRecord record{};
  record.code = static_cast<int32_t>(outcome.status.code());
  CopyText(outcome.status.message(), record.message, kMessageBytes);
  CHECK(outcome.files.size() <= RankOutcome::kMaxFiles);
  record.num_files = static_cast<int32_t>(outcome.files.size());
  for (size_t i = 0; i < outcome.files.size(); ++i) {
    record.files[i].bytes = outcome.files[i].bytes;
    CopyText(outcome.files[i].name, record.files[i].name, kNameBytes);
    CopyText(outcome.files[i].sha256, record.files[i].sha256, kDigestBytes);
  }
  return record;
}

RankOutcome Unpack(const OutcomeRecord& record) {
  RankOutcome outcome;
  outcome.status = absl::Status(static_cast<absl::StatusCode>(record.code),
                                TextOf(record.message, kMessageBytes));
  for (int32_t i = 0; i < record.num_files; ++i) {
    const FileRecord& file = record.files[i];
    outcome.files.push_back(
        {TextOf(file.name, kNameBytes), file.bytes, TextOf(file.sha256, kDigestBytes)});
  }
  return outcome;
}

std::span<std::byte> BytesOfRecord(OutcomeRecord& record) {
  return std::as_writable_bytes(std::span<OutcomeRecord>(&record, 1));
}

absl::Status RunOne(Transport& transport, const Transfer& transfer, absl::Duration timeout) {
  return transport.Run(std::span<const Transfer>(&transfer, 1), timeout);
}

}  // namespace

absl::StatusOr<std::vector<RankOutcome>> GatherOutcomes(Transport& transport,
                                                        const RankOutcome& mine,
                                                        absl::Duration timeout) {
  const Tag tag{kCheckpointOutcomeTag, 0, 0};
  if (transport.rank() != 0) {
    OutcomeRecord record = Pack(mine);
    RETURN_IF_ERROR(
        RunOne(transport, {Transfer::Direction::kSend, 0, tag, BytesOfRecord(record)}, timeout));
    return std::vector<RankOutcome>();
  }
  std::vector<OutcomeRecord> records(static_cast<size_t>(transport.size()));
  std::vector<Transfer> transfers;
  for (int rank = 1; rank < transport.size(); ++rank) {
    transfers.push_back({Transfer::Direction::kReceive, rank, tag,
                         BytesOfRecord(records[static_cast<size_t>(rank)])});
  }
  RETURN_IF_ERROR(transport.Run(transfers, timeout));
  std::vector<RankOutcome> outcomes = {mine};
  for (size_t rank = 1; rank < records.size(); ++rank) outcomes.push_back(Unpack(records[rank]));
  return outcomes;
}

absl::StatusOr<std::string> BroadcastText(Transport& transport,
                                          const absl::StatusOr<std::string>& text,
                                          absl::Duration timeout) {
  const Tag tag{kCheckpointVerdictTag, 0, 0};
  OutcomeRecord record = Pack({text.status(), {}});
  if (text.ok() && text->size() > kMessageBytes) {
    record = Pack({absl::InvalidArgumentError(absl::StrCat(
                       "a text of ", text->size(), " bytes is too long for the other ranks")),
                   {}});
  } else if (text.ok()) {
    CopyText(*text, record.message, kMessageBytes);
  }
  if (transport.rank() != 0) {
    RETURN_IF_ERROR(
        RunOne(transport, {Transfer::Direction::kReceive, 0, tag, BytesOfRecord(record)}, timeout));
  } else {
    std::vector<Transfer> transfers;
    for (int rank = 1; rank < transport.size(); ++rank) {
      transfers.push_back({Transfer::Direction::kSend, rank, tag, BytesOfRecord(record)});
    }
    RETURN_IF_ERROR(transport.Run(transfers, timeout));
    RETURN_IF_ERROR(text.status());  // not shortened
  }
  RETURN_IF_ERROR(Unpack(record).status);
  return TextOf(record.message, kMessageBytes);
}

absl::Status BroadcastStatus(Transport& transport, const absl::Status& status,
                             absl::Duration timeout) {
  return BroadcastText(
             transport,
             status.ok() ? absl::StatusOr<std::string>("") : absl::StatusOr<std::string>(status),
             timeout)
      .status();
}

absl::Status FirstFailure(const std::vector<RankOutcome>& outcomes) {
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    const absl::Status& status = outcomes[rank].status;
    if (status.ok()) continue;
    return absl::Status(status.code(),
                        absl::StrCat("checkpoint, rank ", rank, ": ", status.message()));
  }
  return absl::OkStatus();
}

}  // namespace esteira
