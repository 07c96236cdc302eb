#pragma once

#include <memory>
#include <string>

#include "absl/time/time.h"

namespace grpc {
class Channel;
class ClientContext;
}  // namespace grpc

namespace esteira {

// A plaintext channel to "host:port" that notices a dead peer: keepalive pings every 10 s, 5 s to
// answer, also without open calls. Connects lazily. Messages of up to 64 MiB (plans are large) in
// both directions.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address);

// Every unary call has a deadline.
inline constexpr absl::Duration kDefaultDeadline = absl::Seconds(30);
void SetDeadline(grpc::ClientContext& context, absl::Duration timeout = kDefaultDeadline);

}  // namespace esteira
