#include "common/rpc/server.h"

#include <arpa/inet.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/support/server_interceptor.h>

#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/names.h"
#include "common/base/status_macros.h"
#include "common/rpc/limits.h"
#include "common/rpc/status.h"

namespace esteira {
namespace {

// A name may resolve to any address: of names, only localhost counts.
bool IsLoopback(const std::string& host) {
  if (host == "localhost") return true;
  in_addr v4{};
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  if (host.front() != '[' || host.back() != ']') return false;
  in6_addr v6{};
  return inet_pton(AF_INET6, host.substr(1, host.size() - 2).c_str(), &v6) == 1 &&
         IN6_IS_ADDR_LOOPBACK(&v6);
}

// Lives as long as one RPC. A call that ends without a status of ours was cancelled.
class ObservingInterceptor : public grpc::experimental::Interceptor {
 public:
  ObservingInterceptor(const RpcObserver& observer, std::string method)
      : observer_(observer), method_(std::move(method)), start_(absl::Now()) {}
  ~ObservingInterceptor() override { observer_(method_, code_, absl::Now() - start_); }

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(
            grpc::experimental::InterceptionHookPoints::PRE_SEND_STATUS)) {
      code_ = CodeName(static_cast<absl::StatusCode>(methods->GetSendStatus().error_code()));
    }
    methods->Proceed();
  }

 private:
  const RpcObserver observer_;
  const std::string method_;
  const absl::Time start_;
  std::string code_ = "CANCELLED";
};

class ObservingInterceptorFactory : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit ObservingInterceptorFactory(RpcObserver observer) : observer_(std::move(observer)) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* info) override {
    return new ObservingInterceptor(observer_, info->method());
  }

 private:
  const RpcObserver observer_;
};

// These two are switches of the whole process; they must be set before the first server is built.
void EnableProcessPlugins(bool reflection) {
  static std::once_flag health_once;
  std::call_once(health_once, [] { grpc::EnableDefaultHealthCheckService(true); });
  static std::once_flag reflection_once;
  if (reflection) {
    std::call_once(reflection_once,
                   [] { grpc::reflection::InitProtoReflectionServerBuilderPlugin(); });
  }
}

void SetKeepalive(grpc::ServerBuilder& builder) {
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Two servers on one port would share its connections without anyone noticing.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
}

}  // namespace

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Start(
    const RpcServerOptions& options, const std::vector<NamedService>& services) {
  ASSIGN_OR_RETURN(const HostPort address, ParseHostPort(options.address, 0));
  if (!options.allow_remote && !IsLoopback(address.host)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "refusing to listen on ", options.address,
        ": connections are neither encrypted nor authenticated. Use a loopback address, or "
        "--allow_remote on a network where every machine is trusted"));
  }
  EnableProcessPlugins(options.reflection);
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(options.address, grpc::InsecureServerCredentials(), &port);
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.SetMaxSendMessageSize(kMaxMessageBytes);
  SetKeepalive(builder);
  std::vector<std::string> names;
  for (const NamedService& service : services) {
    builder.RegisterService(service.service);
    names.push_back(service.name);
  }
  if (options.observer) {
    std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> factories;
    factories.push_back(std::make_unique<ObservingInterceptorFactory>(options.observer));
    builder.experimental().SetInterceptorCreators(std::move(factories));
  }
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", options.address,
                                               ": is the address taken, or not of this machine?"));
  }
  std::unique_ptr<RpcServer> result(
      new RpcServer(std::move(server), std::move(names), address.host, port));
  result->SetServing(false);
  return result;
}

RpcServer::RpcServer(std::unique_ptr<grpc::Server> server, std::vector<std::string> names,
                     std::string host, int port)
    : server_(std::move(server)), names_(std::move(names)), host_(std::move(host)), port_(port) {}

RpcServer::~RpcServer() { Shutdown(absl::ZeroDuration()); }

void RpcServer::SetServing(bool serving) {
  grpc::HealthCheckServiceInterface& health = *server_->GetHealthCheckService();
  health.SetServingStatus(serving);  // ""
  for (const std::string& name : names_) health.SetServingStatus(name, serving);
}

void RpcServer::Shutdown(absl::Duration grace) {
  if (server_ == nullptr) return;
  SetServing(false);
  server_->Shutdown(absl::ToChronoTime(absl::Now() + grace));
  server_->Wait();
  server_ = nullptr;
}

}  // namespace esteira
