// Between absl's time and the time of our messages.
#pragma once

#include <google/protobuf/timestamp.pb.h>

#include "absl/time/time.h"

namespace esteira {

// To the nanosecond; what is before 1678 or after 2261 becomes the first or last such time.
google::protobuf::Timestamp EncodeTime(absl::Time time);
absl::Time DecodeTime(const google::protobuf::Timestamp& time);

}  // namespace esteira
