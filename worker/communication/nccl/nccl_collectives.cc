#include "worker/communication/nccl/nccl_collectives.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "worker/communication/algorithms.h"
#include "worker/communication/group_arguments.h"

namespace esteira {
namespace {

using Bytes = std::span<std::byte>;

// A sum of one piece of each member, in an order that counts.
struct OrderedSum {
  PieceType type;
  Bytes contribution;  // one piece for each member
  float* sums;
};

size_t ElementBytes(PieceType type) {
  return type == PieceType::kFp32 ? sizeof(float) : sizeof(uint16_t);
}

class OpenedNcclCollectives : public NcclCollectives {
 public:
  OpenedNcclCollectives(std::unique_ptr<NcclCommunicator> communicator, uint32_t group_id,
                        AddPieces add_pieces)
      : communicator_(std::move(communicator)),
        nccl_(communicator_->library()),
        group_id_(group_id),
        add_pieces_(std::move(add_pieces)),
        check_(communicator_->group().size) {}

  int position() const override { return communicator_->group().position; }
  int size() const override { return check_.size(); }
  int64_t ScratchBytes(int64_t bytes) const override { return check_.ScratchBytes(bytes); }
  void Abort(const absl::Status& cause) override { communicator_->Abort(cause); }

  void AllGather(Bytes buffer, Stream& stream) override { AllGatherEach({buffer}, stream); }

  void AllGatherEach(std::vector<Bytes> buffers, Stream& stream) override {
    absl::Status arguments;
    for (Bytes buffer : buffers) arguments.Update(check_.Pieces(buffer.size()));
    Start("AllGather", std::move(arguments), stream,
          [this, buffers = std::move(buffers)] { return Gather(buffers); });
  }

  void ReduceScatter(std::span<float> buffer, Bytes scratch, Stream& stream) override {
    ReduceScatterEach(std::vector{buffer}, scratch, stream);
  }

  void ReduceScatter(std::span<int64_t> buffer, Bytes scratch, Stream& stream) override {
    ReduceScatterEach(std::vector{buffer}, scratch, stream);
  }

  void ReduceScatterEach(std::vector<std::span<float>> buffers, Bytes scratch,
                         Stream& stream) override {
    absl::Status arguments = CheckEach<float>(buffers, scratch);
    arguments.Update(CheckAdditions());
    Start("ReduceScatter", std::move(arguments), stream,
          [this, buffers = std::move(buffers), scratch] {
            return SumInOrder(SumsOf(buffers), scratch);
          });
  }

  void ReduceScatterEach(std::vector<std::span<int64_t>> buffers, Bytes scratch,
                         Stream& stream) override {
    absl::Status arguments = CheckEach<int64_t>(buffers, scratch);
    Start("ReduceScatter", std::move(arguments), stream,
          [this, buffers = std::move(buffers)] { return SumIntegers(buffers); });
  }

  void ReduceScatterBf16Each(std::vector<Bf16Reduction> reductions, Bytes scratch,
                             Stream& stream) override {
    absl::Status arguments;
    size_t elements = 0;
    std::vector<OrderedSum> sums;
    for (const Bf16Reduction& reduction : reductions) {
      arguments.Update(check_.Pieces(reduction.contribution.size()));
      arguments.Update(check_.Sums(reduction));
      elements += reduction.contribution.size();
      sums.push_back({PieceType::kBf16, std::as_writable_bytes(reduction.contribution),
                      reduction.sums.data()});
    }
    arguments.Update(check_.Scratch<uint16_t>(elements, scratch));
    arguments.Update(CheckAdditions());
    Start(
        "ReduceScatter", std::move(arguments), stream,
        [this, sums = std::move(sums), scratch] { return SumInOrder(sums, scratch); },
        /*alone=*/true);
  }

  void AllReduce(std::span<float> buffer, Bytes scratch, Stream& stream) override {
    absl::Status arguments = check_.Reduction(buffer, scratch);
    arguments.Update(CheckAdditions());
    Start("AllReduce", std::move(arguments), stream, [this, buffer, scratch] {
      RETURN_IF_ERROR(SumInOrder(SumsOf({buffer}), scratch));
      return Gather({std::as_writable_bytes(buffer)});
    });
  }

  void Broadcast(Bytes buffer, int root, Stream& stream) override {
    Start("Broadcast", check_.Root(root), stream, [this, buffer, root] {
      return communicator_->Run([&](nccl::Comm comm, nccl::CudaStream cuda) {
        return communicator_->Check(nccl_.broadcast(buffer.data(), buffer.data(), buffer.size(),
                                                    nccl::kUint8, root, comm, cuda),
                                    "ncclBroadcast");
      });
    });
  }

  // NCCL has none: nobody has a byte of everybody before the last has come.
  void Barrier(Stream& stream) override {
    Start("Barrier", absl::OkStatus(), stream, [this] {
      return Gather({Bytes(communicator_->device_bytes(), static_cast<size_t>(size()))});
    });
  }

 private:
  using Body = std::function<absl::Status()>;

  // `alone`: a group of one has work as well.
  void Start(const char* name, absl::Status arguments, Stream& stream, Body body,
             bool alone = false) {
    const uint32_t index = sequence_++;
    if (size() == 1 && arguments.ok() && !alone) return;
    stream.Enqueue([this, name, index, arguments = std::move(arguments), body = std::move(body)] {
      absl::Status status = arguments.ok() ? body() : arguments;
      if (status.ok()) return status;
      return absl::Status(status.code(), absl::StrCat(name, " ", index, " of group ", group_id_,
                                                      ": ", status.message()));
    });
  }

  absl::Status Gather(const std::vector<Bytes>& buffers) {
    return communicator_->Run([&](nccl::Comm comm, nccl::CudaStream cuda) {
      for (Bytes buffer : buffers) {
        const Bytes own = Piece(buffer, position(), size());
        RETURN_IF_ERROR(communicator_->Check(
            nccl_.all_gather(own.data(), buffer.data(), own.size(), nccl::kUint8, comm, cuda),
            "ncclAllGather"));
      }
      return absl::OkStatus();
    });
  }

  // Sums that do not wrap are the same in every order, so that NCCL may choose it.
  absl::Status SumIntegers(const std::vector<std::span<int64_t>>& buffers) {
    return communicator_->Run([&](nccl::Comm comm, nccl::CudaStream cuda) {
      for (std::span<int64_t> buffer : buffers) {
        const std::span<int64_t> own = Piece(buffer, position(), size());
        RETURN_IF_ERROR(
            communicator_->Check(nccl_.reduce_scatter(buffer.data(), own.data(), own.size(),
                                                      nccl::kInt64, nccl::kSum, comm, cuda),
                                 "ncclReduceScatter"));
      }
      return absl::OkStatus();
    });
  }

  // NCCL's order of additions depends on its algorithm, its version and the machine: the pieces are
  // exchanged as they are, and added up here as algorithms.h and collectives.h demand.
  absl::Status SumInOrder(const std::vector<OrderedSum>& sums, Bytes scratch) {
    std::vector<std::vector<const void*>> pieces;
    return communicator_->Run(
        [&](nccl::Comm comm, nccl::CudaStream cuda) {
          for (const OrderedSum& sum : sums) {
            RETURN_IF_ERROR(ExchangePieces(sum, scratch, pieces.emplace_back(), comm, cuda));
          }
          return absl::OkStatus();
        },
        [&](nccl::CudaStream cuda) {
          for (size_t i = 0; i < sums.size(); ++i) {
            const size_t count =
                Piece(sums[i].contribution, 0, size()).size() / ElementBytes(sums[i].type);
            if (count == 0) continue;
            RETURN_IF_ERROR(add_pieces_(sums[i].type, pieces[i], sums[i].sums, count, cuda));
          }
          return absl::OkStatus();
        });
  }

  // Sends every member its piece and receives theirs into the front of `scratch`, which is cut off.
  // `pieces`: in the order of the additions; of fp32 it ends with the owner's, of bf16 it is that
  // of the positions.
  absl::Status ExchangePieces(const OrderedSum& sum, Bytes& scratch,
                              std::vector<const void*>& pieces, nccl::Comm comm,
                              nccl::CudaStream cuda) {
    const int first = sum.type == PieceType::kFp32 ? position() + 1 : 0;
    for (int i = 0; i < size(); ++i) {
      const int member = (first + i) % size();
      const Bytes theirs = Piece(sum.contribution, member, size());
      if (member == position()) {
        pieces.push_back(theirs.data());
        continue;
      }
      const Bytes received = scratch.first(theirs.size());
      scratch = scratch.subspan(theirs.size());
      pieces.push_back(received.data());
      RETURN_IF_ERROR(communicator_->Check(
          nccl_.send(theirs.data(), theirs.size(), nccl::kUint8, member, comm, cuda), "ncclSend"));
      RETURN_IF_ERROR(communicator_->Check(
          nccl_.receive(received.data(), received.size(), nccl::kUint8, member, comm, cuda),
          "ncclRecv"));
    }
    return absl::OkStatus();
  }

  std::vector<OrderedSum> SumsOf(const std::vector<std::span<float>>& buffers) const {
    std::vector<OrderedSum> sums;
    sums.reserve(buffers.size());
    for (std::span<float> buffer : buffers) {
      sums.push_back({PieceType::kFp32, std::as_writable_bytes(buffer),
                      Piece(buffer, position(), size()).data()});
    }
    return sums;
  }

  template <typename Element>
  absl::Status CheckEach(const std::vector<std::span<Element>>& buffers, Bytes scratch) const {
    absl::Status status;
    size_t elements = 0;
    for (std::span<Element> buffer : buffers) {
      status.Update(check_.Pieces(buffer.size()));
      elements += buffer.size();
    }
    status.Update(check_.Scratch<Element>(elements, scratch));
    return status;
  }

  absl::Status CheckAdditions() const {
    if (add_pieces_) return absl::OkStatus();
    return absl::UnimplementedError(
        "sums of fp32 and bf16 need additions of the GPU backend: NCCL's own have no fixed order");
  }

  const std::unique_ptr<NcclCommunicator> communicator_;
  const nccl::Library& nccl_;
  const uint32_t group_id_;
  const AddPieces add_pieces_;
  const GroupArguments check_;
  uint32_t sequence_ = 0;  // of operations
};

}  // namespace

absl::StatusOr<std::unique_ptr<NcclCollectives>> OpenNccl(
    std::shared_ptr<const nccl::Library> library, const NcclGroup& group, uint32_t group_id,
    AddPieces add_pieces) {
  ASSIGN_OR_RETURN(std::unique_ptr<NcclCommunicator> communicator,
                   NcclCommunicator::Open(std::move(library), group));
  return std::make_unique<OpenedNcclCollectives>(std::move(communicator), group_id,
                                                 std::move(add_pieces));
}

}  // namespace esteira
