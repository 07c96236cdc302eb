#include "common/rpc/timestamp.h"

namespace esteira {

google::protobuf::Timestamp EncodeTime(absl::Time time) {
  const int64_t nanos = absl::ToUnixNanos(time);
  // `nanos` of a message counts forwards, before 1970 too.
  const int64_t seconds = nanos / 1'000'000'000 - (nanos % 1'000'000'000 < 0 ? 1 : 0);
  google::protobuf::Timestamp message;
  message.set_seconds(seconds);
  message.set_nanos(static_cast<int32_t>(nanos - seconds * 1'000'000'000));
  return message;
}

absl::Time DecodeTime(const google::protobuf::Timestamp& time) {
  return absl::FromUnixSeconds(time.seconds()) + absl::Nanoseconds(time.nanos());
}

}  // namespace esteira
