#include "worker/trainer/channel.h"

#include <google/protobuf/message_lite.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"

namespace esteira {
namespace {

constexpr size_t kLengthBytes = 4;

absl::Status Gone(absl::string_view what) {
  return absl::UnavailableError(
      absl::StrCat("the other end of the trainer channel is gone: ", what));
}

void StoreLength(uint32_t length, char* bytes) {
  for (size_t i = 0; i < kLengthBytes; ++i) bytes[i] = static_cast<char>(length >> (8 * i));
}

uint32_t LoadLength(const char* bytes) {
  uint32_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    length |= static_cast<uint32_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  }
  return length;
}

}  // namespace

Channel::~Channel() { close(fd_); }

void Channel::StopReading() { shutdown(fd_, SHUT_RD); }

absl::Status Channel::Write(const google::protobuf::MessageLite& message) {
  const size_t size = message.ByteSizeLong();
  if (size > kMaxMessageBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a message of ", size,
                                                   " bytes is over the limit of ", kMaxMessageBytes,
                                                   " of the trainer channel"));
  }
  std::string frame(kLengthBytes, '\0');
  StoreLength(static_cast<uint32_t>(size), frame.data());
  message.AppendToString(&frame);
  absl::MutexLock lock(&write_mutex_);
  for (size_t done = 0; done < frame.size();) {
    const ssize_t sent = send(fd_, frame.data() + done, frame.size() - done, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return Gone(std::strerror(errno));
    done += static_cast<size_t>(sent);
  }
  return absl::OkStatus();
}

absl::Status Channel::ReadFully(char* bytes, size_t count) {
  for (size_t done = 0; done < count;) {
    const ssize_t got = recv(fd_, bytes + done, count - done, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Gone(std::strerror(errno));
    if (got == 0) return Gone("end of stream");
    done += static_cast<size_t>(got);
  }
  return absl::OkStatus();
}

absl::Status Channel::Read(google::protobuf::MessageLite& message) {
  char header[kLengthBytes];
  RETURN_IF_ERROR(ReadFully(header, kLengthBytes));
  const uint32_t length = LoadLength(header);
  if (length > kMaxMessageBytes) {
    return absl::DataLossError(
        absl::StrCat("a frame of the trainer channel claims ", length, " bytes"));
  }
  std::string body(length, '\0');
  RETURN_IF_ERROR(ReadFully(body.data(), length));
  if (!message.ParseFromString(body)) {
    return absl::DataLossError(
        "a frame of the trainer channel is not a message of the expected type");
  }
  return absl::OkStatus();
}

}  // namespace esteira
