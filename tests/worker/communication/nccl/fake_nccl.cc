#include "tests/worker/communication/nccl/fake_nccl.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "tests/worker/communication/nccl/additions.h"

namespace esteira {
namespace {

enum class Kind { kAllGather, kReduceScatter, kBroadcast, kSend, kReceive };

struct Operation {
  Kind kind;
  const void* from;
  void* to;
  size_t count;
  nccl::DataType type;
  int peer = 0;  // or root
  int rank = 0;
  bool done = false;

  bool Fits(const Operation& other) const {
    return kind == other.kind && count == other.count && type == other.type && peer == other.peer;
  }
};
using Operations = std::vector<std::shared_ptr<Operation>>;

size_t Bytes(const Operation& operation) {
  switch (operation.type) {
    case nccl::kUint8: return operation.count;
    case nccl::kInt64: return operation.count * sizeof(int64_t);
    default: return operation.count * sizeof(float);
  }
}

// The members of one unique id.
struct World {
  int size = 0;
  int joined = 0;
  std::vector<size_t> calls;            // collectives of each rank so far
  std::map<size_t, Operations> rounds;  // by number: of each rank, or null
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Operation>>> sends, receives;
};

struct FakeComm {
  std::shared_ptr<World> world;
  int rank = 0;
  int device = 0;
  int polls_left = 0;
  bool lost_a_peer = false;
};

struct Work {
  Operations operations;
  std::function<void()> host;
  FakeComm* comm = nullptr;
  bool started = false;
};

// Of one thread, between start and end.
struct Group {
  int depth = 0;
  Operations operations;
  FakeComm* comm = nullptr;
  nccl::CudaStream stream = nullptr;
};

template <typename Element>
void AddUp(const Operations& round, std::mt19937_64& random) {
  std::vector<size_t> order(round.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  for (const auto& operation : round) {
    for (size_t i = 0; i < operation->count; ++i) {
      const size_t at = static_cast<size_t>(operation->rank) * operation->count + i;
      std::shuffle(order.begin(), order.end(), random);
      Element sum = 0;
      for (size_t rank : order) sum += static_cast<const Element*>(round[rank]->from)[at];
      static_cast<Element*>(operation->to)[i] = sum;
    }
  }
}

void Happen(const Operations& round, std::mt19937_64& random) {
  const Operation& first = *round.front();
  if (first.kind == Kind::kReduceScatter) {
    if (first.type == nccl::kInt64) AddUp<int64_t>(round, random);
    if (first.type == kNcclFloat32) AddUp<float>(round, random);
  } else if (first.kind == Kind::kBroadcast) {
    const void* from = round[static_cast<size_t>(first.peer)]->from;
    for (const auto& operation : round) std::memmove(operation->to, from, Bytes(first));
  } else {
    for (const auto& source : round) {
      for (const auto& target : round) {
        std::byte* to =
            static_cast<std::byte*>(target->to) + static_cast<size_t>(source->rank) * Bytes(first);
        std::memmove(to, source->from, Bytes(first));
      }
    }
  }
  for (const auto& operation : round) operation->done = true;
}

}  // namespace

class FakeNccl::Machine {
 public:
  explicit Machine(const FakeNcclOptions& options) : options_(options), random_(options.seed) {}
  ~Machine() {
    for (void* left : allocations_) operator delete(left);
  }

  nccl::Library MakeLibrary(std::shared_ptr<Machine> self);

  nccl::Result GetUniqueId(nccl::UniqueId* id) {
    std::memset(id->bytes, 0, sizeof(id->bytes));
    std::lock_guard lock(mutex_);
    std::memcpy(id->bytes, &++ids_, sizeof(ids_));
    return nccl::kSuccess;
  }

  nccl::Result Init(nccl::Comm* comm, int size, const nccl::UniqueId& id, int rank,
                    const nccl::Config& config) {
    std::lock_guard lock(mutex_);
    if (config.magic != 0xcafebeef || config.version != 21400 || config.blocking != 0) {
      return kFailure;
    }
    std::shared_ptr<World>& world = worlds_[std::string(id.bytes, sizeof(id.bytes))];
    if (world == nullptr) world = std::make_shared<World>();
    if (world->joined > 0 && world->size != size) return kFailure;
    world->size = size;
    world->calls.resize(static_cast<size_t>(size));
    ++world->joined;
    auto* made =
        new FakeComm{world, rank, devices_[std::this_thread::get_id()], options_.in_progress_polls};
    comms_.insert(made);
    *comm = reinterpret_cast<nccl::Comm>(made);
    return nccl::kInProgress;
  }

  nccl::Result AsyncError(nccl::Comm comm, nccl::Result* state) {
    std::lock_guard lock(mutex_);
    FakeComm& fake = *reinterpret_cast<FakeComm*>(comm);
    *state = nccl::kInProgress;
    if (fake.lost_a_peer) {
      *state = nccl::kRemoteError;
    } else if (fake.world->joined == fake.world->size && fake.polls_left-- <= 0) {
      *state = nccl::kSuccess;
      Release(fake);
    }
    return nccl::kSuccess;
  }

  nccl::Result Finalize(nccl::Comm comm) {
    std::lock_guard lock(mutex_);
    reinterpret_cast<FakeComm*>(comm)->polls_left = options_.in_progress_polls;
    return nccl::kInProgress;
  }

  nccl::Result Free(nccl::Comm comm) {
    std::lock_guard lock(mutex_);
    auto* fake = reinterpret_cast<FakeComm*>(comm);
    for (auto& [stream, works] : streams_) {
      std::erase_if(*works, [&](const Work& work) { return work.comm == fake; });
    }
    if (OnWrongDevice(*fake) || comms_.erase(fake) == 0) return kFailure;
    delete fake;
    return nccl::kSuccess;
  }

  nccl::Result Abort(nccl::Comm comm) {
    {
      std::unique_lock lock(mutex_);
      ++aborts_;
      released_.wait(lock, [this] { return !options_.abort_hangs; });
    }
    return Free(comm);
  }

  nccl::Result Start() {
    std::lock_guard lock(mutex_);
    ++groups_[std::this_thread::get_id()].depth;
    return nccl::kSuccess;
  }

  nccl::Result Call(Operation operation, nccl::Comm comm, nccl::CudaStream stream) {
    std::lock_guard lock(mutex_);
    Group& group = groups_[std::this_thread::get_id()];
    auto* fake = reinterpret_cast<FakeComm*>(comm);
    if (group.depth != 1 || OnWrongDevice(*fake)) return kFailure;
    operation.rank = fake->rank;
    group.operations.push_back(std::make_shared<Operation>(operation));
    group.comm = fake;
    group.stream = stream;
    return nccl::kInProgress;
  }

  nccl::Result End() {
    std::lock_guard lock(mutex_);
    Group group = std::exchange(groups_[std::this_thread::get_id()], {});
    if (group.depth != 1 || options_.failing_call == "ncclGroupEnd") return kFailure;
    if (group.comm == nullptr) return nccl::kSuccess;
    group.comm->polls_left = options_.in_progress_polls;
    waiting_[group.comm] = group;
    return nccl::kInProgress;
  }

  nccl::CudaError SetDevice(int device) {
    std::lock_guard lock(mutex_);
    devices_[std::this_thread::get_id()] = device;
    return nccl::kCudaSuccess;
  }

  nccl::CudaError NewStream(nccl::CudaStream* stream) {
    std::lock_guard lock(mutex_);
    auto made = std::make_unique<std::deque<Work>>();
    *stream = reinterpret_cast<nccl::CudaStream>(made.get());
    streams_.emplace(*stream, std::move(made));
    return nccl::kCudaSuccess;
  }

  nccl::CudaError DestroyStream(nccl::CudaStream stream) {
    std::lock_guard lock(mutex_);
    return streams_.erase(stream) == 1 ? nccl::kCudaSuccess : kCudaFailure;
  }

  nccl::CudaError Query(nccl::CudaStream stream) {
    std::lock_guard lock(mutex_);
    std::deque<Work>& works = *streams_.at(stream);
    ++queries_;
    while (!works.empty()) {
      Work& work = works.front();
      if (!work.started) {
        work.started = true;
        for (const auto& operation : work.operations) Reach(*work.comm->world, operation);
      }
      if (!std::all_of(work.operations.begin(), work.operations.end(),
                       [](const auto& operation) { return operation->done; })) {
        return nccl::kCudaNotReady;
      }
      if (work.host) work.host();
      works.pop_front();
    }
    return nccl::kCudaSuccess;
  }

  nccl::CudaError Allocate(void** pointer, size_t bytes) {
    std::lock_guard lock(mutex_);
    *pointer = operator new(bytes);
    allocations_.insert(*pointer);
    return nccl::kCudaSuccess;
  }

  nccl::CudaError FreeMemory(void* pointer) {
    std::lock_guard lock(mutex_);
    if (allocations_.erase(pointer) == 0) return kCudaFailure;
    operator delete(pointer);
    return nccl::kCudaSuccess;
  }

  void Enqueue(nccl::CudaStream stream, std::function<void()> host) {
    std::lock_guard lock(mutex_);
    streams_.at(stream)->push_back({.operations = {}, .host = std::move(host)});
  }

  void Lose(int device) {
    std::lock_guard lock(mutex_);
    for (FakeComm* comm : comms_) comm->lost_a_peer = comm->device != device;
  }
  void ReleaseAborts() {
    std::lock_guard lock(mutex_);
    options_.abort_hangs = false;
    released_.notify_all();
  }
  int aborts() const {
    std::lock_guard lock(mutex_);
    return aborts_;
  }
  int queries() const {
    std::lock_guard lock(mutex_);
    return queries_;
  }
  int alive() const {
    std::lock_guard lock(mutex_);
    int open_groups = 0;
    for (const auto& [thread, group] : groups_) open_groups += group.depth;
    return static_cast<int>(comms_.size() + streams_.size() + allocations_.size()) + open_groups;
  }

 private:
  bool OnWrongDevice(const FakeComm& comm) {
    return devices_[std::this_thread::get_id()] != comm.device;
  }

  // What has been in progress is on its stream.
  void Release(FakeComm& comm) {
    const auto waiting = waiting_.extract(&comm);
    if (waiting.empty()) return;
    const Group& group = waiting.mapped();
    streams_.at(group.stream)
        ->push_back({.operations = group.operations, .host = nullptr, .comm = &comm});
  }

  void Reach(World& world, const std::shared_ptr<Operation>& operation) {
    if (operation->kind == Kind::kSend || operation->kind == Kind::kReceive) {
      const bool sends = operation->kind == Kind::kSend;
      const std::pair ends = sends ? std::pair(operation->rank, operation->peer)
                                   : std::pair(operation->peer, operation->rank);
      (sends ? world.sends : world.receives)[ends].push_back(operation);
      auto& sent = world.sends[ends];
      auto& received = world.receives[ends];
      if (sent.empty() || received.empty() || sent.front()->count != received.front()->count) {
        return;
      }
      std::memcpy(received.front()->to, sent.front()->from, Bytes(*operation));
      received.front()->done = sent.front()->done = true;
      sent.pop_front();
      received.pop_front();
      return;
    }
    const auto rank = static_cast<size_t>(operation->rank);
    Operations& round = world.rounds[world.calls[rank]++];
    round.resize(static_cast<size_t>(world.size));
    round[rank] = operation;
    const bool complete = std::all_of(round.begin(), round.end(), [&](const auto& other) {
      return other != nullptr && other->Fits(*operation);
    });
    if (complete) Happen(round, random_);
  }

  mutable std::mutex mutex_;
  std::condition_variable released_;
  FakeNcclOptions options_;
  std::mt19937_64 random_;
  uint64_t ids_ = 0;
  int aborts_ = 0;
  int queries_ = 0;
  std::map<std::string, std::shared_ptr<World>> worlds_;
  std::set<FakeComm*> comms_;
  std::map<nccl::CudaStream, std::unique_ptr<std::deque<Work>>> streams_;
  std::set<void*> allocations_;
  std::map<FakeComm*, Group> waiting_;
  std::map<std::thread::id, Group> groups_;
  std::map<std::thread::id, int> devices_;
};

nccl::Library FakeNccl::Machine::MakeLibrary(std::shared_ptr<Machine> m) {
  using nccl::Comm, nccl::CudaStream, nccl::DataType;
  const auto make = [&m](const char* name, auto body) {
    return [m, body, fails = m->options_.failing_call == name](auto... arguments) {
      using Value = decltype(body(arguments...));
      return fails ? static_cast<Value>(std::is_same_v<Value, nccl::Result> ? int{kFailure}
                                                                            : int{kCudaFailure})
                   : body(arguments...);
    };
  };
  nccl::Library l;
  l.get_version = [](int* version) { return *version = 22606, nccl::kSuccess; };
  l.get_error_string = [](nccl::Result r) { return r == kFailure ? "invalid usage" : "remote"; };
  l.get_last_error = [](Comm) { return "what went before"; };
  l.cuda_error_string = [](nccl::CudaError) { return "an illegal address"; };
  l.get_unique_id = make("ncclGetUniqueId", [m](auto* id) { return m->GetUniqueId(id); });
  l.init_rank_config =
      make("ncclCommInitRankConfig", [m](Comm* comm, int size, auto id, int rank, auto* config) {
        return m->Init(comm, size, id, rank, *config);
      });
  l.get_async_error = make("ncclCommGetAsyncError", [m](Comm comm, nccl::Result* state) {
    return m->AsyncError(comm, state);
  });
  l.finalize = make("ncclCommFinalize", [m](Comm comm) { return m->Finalize(comm); });
  l.destroy = make("ncclCommDestroy", [m](Comm comm) { return m->Free(comm); });
  l.abort = make("ncclCommAbort", [m](Comm comm) { return m->Abort(comm); });
  l.group_start = make("ncclGroupStart", [m] { return m->Start(); });
  l.group_end = [m] { return m->End(); };  // ends it, also when it fails
  l.all_gather = make("ncclAllGather", [m](const void* from, void* to, size_t count, DataType type,
                                           Comm comm, CudaStream stream) {
    return m->Call({Kind::kAllGather, from, to, count, type}, comm, stream);
  });
  l.reduce_scatter =
      make("ncclReduceScatter", [m](const void* from, void* to, size_t count, DataType type,
                                    nccl::ReduceOp op, Comm comm, CudaStream stream) {
        if (op != nccl::kSum) return kFailure;
        return m->Call({Kind::kReduceScatter, from, to, count, type}, comm, stream);
      });
  l.broadcast = make("ncclBroadcast", [m](const void* from, void* to, size_t count, DataType type,
                                          int root, Comm comm, CudaStream stream) {
    return m->Call({Kind::kBroadcast, from, to, count, type, root}, comm, stream);
  });
  l.send = make("ncclSend", [m](const void* from, size_t count, DataType type, int peer, Comm comm,
                                CudaStream stream) {
    return m->Call({Kind::kSend, from, nullptr, count, type, peer}, comm, stream);
  });
  l.receive = make("ncclRecv", [m](void* to, size_t count, DataType type, int peer, Comm comm,
                                   CudaStream stream) {
    return m->Call({Kind::kReceive, nullptr, to, count, type, peer}, comm, stream);
  });
  l.set_device = make("cudaSetDevice", [m](int device) { return m->SetDevice(device); });
  l.stream_create = make("cudaStreamCreateWithFlags",
                         [m](CudaStream* stream, unsigned) { return m->NewStream(stream); });
  l.stream_destroy =
      make("cudaStreamDestroy", [m](CudaStream stream) { return m->DestroyStream(stream); });
  l.stream_query = make("cudaStreamQuery", [m](CudaStream stream) { return m->Query(stream); });
  l.allocate =
      make("cudaMalloc", [m](void** pointer, size_t bytes) { return m->Allocate(pointer, bytes); });
  l.free = make("cudaFree", [m](void* pointer) { return m->FreeMemory(pointer); });
  return l;
}

FakeNccl::FakeNccl(const FakeNcclOptions& options) : machine_(std::make_shared<Machine>(options)) {}
FakeNccl::~FakeNccl() = default;

std::shared_ptr<const nccl::Library> FakeNccl::library() const {
  return std::make_shared<const nccl::Library>(machine_->MakeLibrary(machine_));
}

AddPieces FakeNccl::Additions() const {
  return [machine = machine_](PieceType type, std::span<const void* const> pieces, float* sums,
                              size_t count, nccl::CudaStream stream) {
    machine->Enqueue(
        stream, [type, sums, count, kept = std::vector<const void*>(pieces.begin(), pieces.end())] {
          AddPiecesOnHost(type, kept, sums, count);
        });
    return absl::OkStatus();
  };
}

void FakeNccl::Lose(int device) { machine_->Lose(device); }
void FakeNccl::ReleaseAborts() { machine_->ReleaseAborts(); }
int FakeNccl::aborts() const { return machine_->aborts(); }
int FakeNccl::queries() const { return machine_->queries(); }
int FakeNccl::alive() const { return machine_->alive(); }

}  // namespace esteira
