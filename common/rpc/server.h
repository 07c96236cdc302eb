#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace grpc {
class Server;
class Service;
}  // namespace grpc

namespace esteira {

// Called once for every RPC that ended: its method ("/package.Service/Name"), its code ("OK") and
// how long it took. From any thread.
using RpcObserver = std::function<void(const std::string& method, const std::string& code,
                                       absl::Duration duration)>;

struct RpcServerOptions {
  std::string address = "127.0.0.1:0";  // port 0: any free port
  bool allow_remote = false;            // without it, only loopback addresses are accepted
  bool reflection = false;              // tells the schema to anyone who can connect
  RpcObserver observer;
};

// A service and its full name, "package.Service", under which the health service knows it.
struct NamedService {
  std::string name;
  grpc::Service* service = nullptr;
};

// A gRPC server with health service ("" and every service's name), keepalive rules and, on request,
// reflection. Owns the listening socket; the services outlive it. Plaintext.
class RpcServer {
 public:
  // Not serving until SetServing. InvalidArgument for an address that is malformed or refused,
  // Unavailable when it cannot be bound.
  static absl::StatusOr<std::unique_ptr<RpcServer>> Start(
      const RpcServerOptions& options, const std::vector<NamedService>& services);
  ~RpcServer();

  int port() const { return port_; }
  const std::string& host() const { return host_; }

  // What the health service answers.
  void SetServing(bool serving);

  // Stops accepting, waits up to `grace` for calls to end, then cancels them. Once.
  void Shutdown(absl::Duration grace);

 private:
  RpcServer(std::unique_ptr<grpc::Server> server, std::vector<std::string> names, std::string host,
            int port);

  std::unique_ptr<grpc::Server> server_;
  const std::vector<std::string> names_;
  std::string host_;
  int port_;
};

}  // namespace esteira
