#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace google::protobuf {
class MessageLite;
}

namespace esteira {

// Where a trainer process finds its end of the channel: the first descriptor after the standard
// three, whose output belongs to libraries.
inline constexpr int kChannelDescriptor = 3;

// Whole protobuf messages over one end of a socket pair: how a worker daemon and its trainer
// process talk. A frame is a 4-byte little-endian length and that many bytes. Owns the descriptor.
// One reader thread; any writers.
class Channel {
 public:
  explicit Channel(int fd) : fd_(fd) {}
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  // Unavailable when the other end is gone; InvalidArgument when a message is larger than the
  // limit.
  absl::Status Write(const google::protobuf::MessageLite& message);
  // Blocks for one message. Unavailable at the end of the stream, DataLoss for a frame that cannot
  // be read.
  absl::Status Read(google::protobuf::MessageLite& message);
  // Ends a blocked Read; later ones still return what had arrived, then Unavailable. Write goes on.
  // Any thread.
  void StopReading();

  static constexpr uint32_t kMaxMessageBytes = 256u << 20;

 private:
  absl::Status ReadFully(char* bytes, size_t count);

  const int fd_;
  absl::Mutex write_mutex_;
};

}  // namespace esteira
