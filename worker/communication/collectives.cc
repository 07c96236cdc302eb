#include "worker/communication/collectives.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/communication/algorithms.h"
#include "worker/communication/group_arguments.h"

namespace esteira {
namespace {

// Smaller buffers are always exchanged as the LinkModel says, and so are those of larger groups,
// where measuring would move too much.
constexpr size_t kLeastMeasuredBytes = 1 << 20;
constexpr int kMostMeasured = 16;

// Each operation becomes one task on the stream, which blocks there until this member has done its
// part.
class TransportCollectives : public Collectives {
 public:
  TransportCollectives(Transport& transport, std::vector<int> members,
                       const CollectivesOptions& options)
      : transport_(transport),
        members_(std::move(members)),
        options_(options),
        check_(static_cast<int>(members_.size())),
        position_(static_cast<int>(std::find(members_.begin(), members_.end(), transport.rank()) -
                                   members_.begin())) {
    CHECK(std::is_sorted(members_.begin(), members_.end()) && position_ < size());
  }

  int position() const override { return position_; }
  int size() const override { return check_.size(); }

  void AllGather(std::span<std::byte> buffer, Stream& stream) override {
    Start("AllGather", check_.Pieces(buffer.size()), stream,
          [this, buffer](const Round& round) { return Gather(round, buffer); });
  }

  void ReduceScatter(std::span<float> buffer, std::span<std::byte> scratch,
                     Stream& stream) override {
    StartReduction(buffer, scratch, stream);
  }

  void ReduceScatter(std::span<int64_t> buffer, std::span<std::byte> scratch,
                     Stream& stream) override {
    StartReduction(buffer, scratch, stream);
  }

  void AllGatherEach(std::vector<std::span<std::byte>> buffers, Stream& stream) override {
    absl::Status arguments;
    for (std::span<std::byte> buffer : buffers) arguments.Update(check_.Pieces(buffer.size()));
    Start("AllGather", std::move(arguments), stream,
          [this, buffers = std::move(buffers)](const Round& round) {
            return buffers.size() == 1 ? Gather(round, buffers[0])
                                       : DirectAllGather(round, buffers);
          });
  }

  void ReduceScatterEach(std::vector<std::span<float>> buffers, std::span<std::byte> scratch,
                         Stream& stream) override {
    StartReductions(std::move(buffers), scratch, stream);
  }

  void ReduceScatterEach(std::vector<std::span<int64_t>> buffers, std::span<std::byte> scratch,
                         Stream& stream) override {
    StartReductions(std::move(buffers), scratch, stream);
  }

  void ReduceScatterBf16Each(std::vector<Bf16Reduction> reductions, std::span<std::byte> scratch,
                             Stream& stream) override {
    absl::Status arguments;
    size_t elements = 0;
    for (const Bf16Reduction& reduction : reductions) {
      arguments.Update(check_.Pieces(reduction.contribution.size()));
      arguments.Update(check_.Sums(reduction));
      elements += reduction.contribution.size();
    }
    arguments.Update(check_.Scratch<uint16_t>(elements, scratch));
    Start(
        "ReduceScatter", std::move(arguments), stream,
        [this, reductions = std::move(reductions), scratch, elements](const Round& round) {
          return DirectReduceScatterBf16(round, reductions, Words<uint16_t>(scratch, elements));
        },
        /*alone=*/true);
  }

  void AllReduce(std::span<float> buffer, std::span<std::byte> scratch, Stream& stream) override {
    Start("AllReduce", check_.Reduction(buffer, scratch), stream,
          [this, buffer, scratch](const Round& round) {
            RETURN_IF_ERROR(Reduce(round, buffer, scratch));
            return Gather(round, std::as_writable_bytes(buffer));
          });
  }

  void Broadcast(std::span<std::byte> buffer, int root, Stream& stream) override {
    Start("Broadcast", check_.Root(root), stream, [this, buffer, root](const Round& round) {
      switch (Resolve(ChooseBroadcastAlgorithm, buffer.size())) {
        case Algorithm::kRing: return RingBroadcast(round, buffer, root);
        case Algorithm::kTree: return TreeBroadcast(round, buffer, root);
        default: return DirectBroadcast(round, buffer, root);
      }
    });
  }

  void Barrier(Stream& stream) override { Start("Barrier", absl::OkStatus(), stream, TreeBarrier); }

  int64_t ScratchBytes(int64_t bytes) const override { return check_.ScratchBytes(bytes); }

 private:
  using Body = std::function<absl::Status(const Round&)>;

  // `alone`: a group of one has work as well.
  void Start(const char* name, absl::Status arguments, Stream& stream, Body body,
             bool alone = false) {
    const Tag tag{kCollectiveTag, options_.group_id, sequence_++};
    if (size() == 1 && arguments.ok() && !alone) return;
    stream.Enqueue([this, name, tag, arguments = std::move(arguments), body = std::move(body)] {
      absl::Status status = arguments;
      if (status.ok()) {
        status = body(Round(transport_, members_, position_, tag, options_.timeout));
      }
      if (status.ok()) return status;
      return absl::Status(status.code(), absl::StrCat(name, " ", tag.index, " of group ", tag.group,
                                                      ": ", status.message()));
    });
  }

  template <typename Element>
  void StartReduction(std::span<Element> buffer, std::span<std::byte> scratch, Stream& stream) {
    Start("ReduceScatter", check_.Reduction(buffer, scratch), stream,
          [this, buffer, scratch](const Round& round) { return Reduce(round, buffer, scratch); });
  }

  template <typename Element>
  void StartReductions(std::vector<std::span<Element>> buffers, std::span<std::byte> scratch,
                       Stream& stream) {
    absl::Status arguments;
    size_t elements = 0;
    for (std::span<Element> buffer : buffers) {
      arguments.Update(check_.Pieces(buffer.size()));
      elements += buffer.size();
    }
    arguments.Update(check_.Scratch<Element>(elements, scratch));
    Start("ReduceScatter", std::move(arguments), stream,
          [this, buffers = std::move(buffers), scratch, elements](const Round& round) {
            if (buffers.size() == 1) return Reduce(round, buffers[0], scratch);
            return DirectReduceScatter<Element>(round, buffers, Words<Element>(scratch, elements));
          });
  }

  // The part of `scratch` that a reduction of `elements` in all uses.
  template <typename Element>
  std::span<Element> Words(std::span<std::byte> scratch, size_t elements) const {
    return {reinterpret_cast<Element*>(scratch.data()),
            elements / members_.size() * (members_.size() - 1)};
  }

  absl::Status Gather(const Round& round, std::span<std::byte> buffer) {
    ASSIGN_OR_RETURN(const Algorithm algorithm, OfPieces(round, buffer.size()));
    return algorithm == Algorithm::kRing ? RingAllGather(round, buffer)
                                         : DirectAllGather(round, std::span(&buffer, 1));
  }

  template <typename Element>
  absl::Status Reduce(const Round& round, std::span<Element> buffer, std::span<std::byte> scratch) {
    const std::span<Element> words = Words<Element>(scratch, buffer.size());
    ASSIGN_OR_RETURN(const Algorithm algorithm, OfPieces(round, buffer.size_bytes()));
    return algorithm == Algorithm::kRing
               ? RingReduceScatter(round, buffer, words)
               : DirectReduceScatter<Element>(round, std::span(&buffer, 1), words);
  }

  // How pieces of `bytes` in all are exchanged. The first large buffer of a group has it measured,
  // in the same operation on every member.
  absl::StatusOr<Algorithm> OfPieces(const Round& round, size_t bytes) {
    const bool measured = options_.algorithm == Algorithm::kAuto && size() > 2 &&
                          size() <= kMostMeasured && bytes >= kLeastMeasuredBytes;
    if (!measured) return Resolve(ChooseAlgorithm, bytes);
    if (!costs_.has_value()) {
      ASSIGN_OR_RETURN(costs_, MeasureGathers(round));
    }
    return DirectIsSooner(*costs_, bytes) ? Algorithm::kDirect : Algorithm::kRing;
  }

  template <typename Choose>
  Algorithm Resolve(Choose choose, size_t bytes) const {
    return options_.algorithm == Algorithm::kAuto
               ? choose(options_.link, static_cast<int64_t>(bytes), size())
               : options_.algorithm;
  }

  Transport& transport_;
  const std::vector<int> members_;
  const CollectivesOptions options_;
  const GroupArguments check_;
  const int position_;
  std::optional<GatherCosts> costs_;  // the same on all members
  uint32_t sequence_ = 0;  // of operations; the same on all members, so that their messages meet
};

double TransferSeconds(const LinkModel& link, double bytes) {
  return bytes / link.bytes_per_second;
}

}  // namespace

std::unique_ptr<Collectives> MakeCollectives(Transport& transport, std::vector<int> members,
                                             const CollectivesOptions& options) {
  return std::make_unique<TransportCollectives>(transport, std::move(members), options);
}

Algorithm ChooseAlgorithm(const LinkModel& link, int64_t bytes, int ranks) {
  if (ranks <= 2) return Algorithm::kDirect;  // both send the same messages
  // A ring pays ranks - 2 latencies more and keeps one flow a link instead of ranks - 1 that meet
  // at every receiver: it is taken when the latencies are small beside the transfer.
  constexpr double kNegligible = 0.1;
  const double extra = (ranks - 2) * link.latency_seconds;
  const double transfer = TransferSeconds(link, static_cast<double>(bytes) * (ranks - 1) / ranks);
  return extra <= kNegligible * transfer ? Algorithm::kRing : Algorithm::kDirect;
}

Algorithm ChooseBroadcastAlgorithm(const LinkModel& link, int64_t bytes, int ranks) {
  if (ranks <= 2) return Algorithm::kDirect;
  const double transfer = TransferSeconds(link, static_cast<double>(bytes));
  const double levels = std::bit_width(static_cast<unsigned>(ranks - 1));
  const double tree = levels * (link.latency_seconds + transfer);
  const double ring = (ranks - 1) * link.latency_seconds + transfer;
  return ring < tree ? Algorithm::kRing : Algorithm::kTree;
}

void Exchange(Transport& transport, std::vector<Transfer> transfers, absl::Duration timeout,
              Stream& stream) {
  stream.Enqueue([&transport, timeout, transfers = std::move(transfers)] {
    return transport.Run(transfers, timeout);
  });
}

}  // namespace esteira
