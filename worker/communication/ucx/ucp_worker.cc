#include "worker/communication/ucx/ucp_worker.h"

#include <net/if.h>
#include <ucs/debug/debug.h>
#include <unistd.h>

#include <csignal>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"

namespace esteira {
namespace {

constexpr char kTransports[] = "tcp,self";

// UCX takes the signals of crashes for itself when it is loaded; crashes belong to the process.
void ReturnCrashSignals() {
  static std::once_flag once;
  std::call_once(once, [] {
    for (int signal : {SIGILL, SIGSEGV, SIGBUS, SIGFPE}) ucs_debug_disable_signal(signal);
  });
}

// UCX itself only warns when it finds no devices, or not this one, and then reaches nobody.
absl::Status CheckDevices(const std::string& network_device) {
  constexpr char kDevices[] = "/sys/class/net";
  if (access(kDevices, R_OK) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("UCX finds network devices in ", kDevices,
                     ", which cannot be read here; mount sysfs (mount -t sysfs sysfs /sys)"));
  }
  for (const std::string& name :
       std::vector<std::string>(absl::StrSplit(network_device, ',', absl::SkipEmpty()))) {
    if (if_nametoindex(name.c_str()) != 0) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("this machine has no network device \"", name, "\""));
  }
  return absl::OkStatus();
}

struct ConfigDeleter {
  void operator()(ucp_config_t* config) const { ucp_config_release(config); }
};
using Config = std::unique_ptr<ucp_config_t, ConfigDeleter>;

absl::StatusOr<Config> ReadConfig(const std::string& network_device) {
  ucp_config_t* read = nullptr;
  if (ucs_status_t error = ucp_config_read(nullptr, nullptr, &read); error != UCS_OK) {
    return UcsStatus(error, "reading the UCX configuration");
  }
  Config config(read);
  std::pair<const char*, std::string> settings[] = {
      {"TLS", kTransports},
      {"MAX_EAGER_RAILS", "1"},  // one lane: messages stay in order
      {"NET_DEVICES", network_device.empty() ? "all" : network_device},
  };
  for (const auto& [name, value] : settings) {
    const ucs_status_t error = ucp_config_modify(config.get(), name, value.c_str());
    if (error != UCS_OK) return UcsStatus(error, absl::StrCat("setting UCX_", name, "=", value));
  }
  return config;
}

}  // namespace

absl::Status UcsStatus(ucs_status_t error, const std::string& what) {
  const std::string message = absl::StrCat(what, ": ", ucs_status_string(error));
  switch (error) {
    case UCS_ERR_UNREACHABLE:
    case UCS_ERR_CONNECTION_RESET:
    case UCS_ERR_NOT_CONNECTED:
    case UCS_ERR_ENDPOINT_TIMEOUT:
    case UCS_ERR_TIMED_OUT:
    case UCS_ERR_CANCELED:
    case UCS_ERR_REJECTED: return absl::UnavailableError(message);
    default: return absl::InternalError(message);
  }
}

absl::StatusOr<std::unique_ptr<UcpWorker>> UcpWorker::Open(const std::string& network_device) {
  ReturnCrashSignals();
  std::unique_ptr<UcpWorker> worker(new UcpWorker());
  RETURN_IF_ERROR(worker->OpenContext(network_device));
  RETURN_IF_ERROR(worker->OpenWorker());
  return worker;
}

absl::Status UcpWorker::OpenContext(const std::string& network_device) {
  RETURN_IF_ERROR(CheckDevices(network_device));
  ASSIGN_OR_RETURN(const Config config, ReadConfig(network_device));
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.mt_workers_shared = 0;
  const ucs_status_t error = ucp_init(&params, config.get(), &context_);
  if (error == UCS_OK) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("UCX cannot use ", kTransports,
                                                    " on network device \"", network_device,
                                                    "\": ", ucs_status_string(error)));
}

absl::Status UcpWorker::OpenWorker() {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_EVENTS;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  params.events = UCP_WAKEUP_RX | UCP_WAKEUP_TX;
  ucs_status_t error = ucp_worker_create(context_, &params, &worker_);
  if (error != UCS_OK) return UcsStatus(error, "creating the UCX worker");
  error = ucp_worker_get_efd(worker_, &event_fd_);
  if (error != UCS_OK) return UcsStatus(error, "asking for UCX's event descriptor");

  ucp_address_t* address = nullptr;
  size_t length = 0;
  error = ucp_worker_get_address(worker_, &address, &length);
  if (error != UCS_OK) return UcsStatus(error, "asking for UCX's address");
  address_.assign(reinterpret_cast<const char*>(address), length);
  ucp_worker_release_address(worker_, address);
  return absl::OkStatus();
}

void UcpWorker::Destroy() {
  if (worker_ != nullptr) ucp_worker_destroy(worker_);
  worker_ = nullptr;
  event_fd_ = -1;
}

UcpWorker::~UcpWorker() {
  Destroy();
  if (context_ != nullptr) ucp_cleanup(context_);
}

bool UcpWorker::Arm() const { return worker_ == nullptr || ucp_worker_arm(worker_) == UCS_OK; }

std::string UcpWorker::Version() {
  return absl::StrCat("ucx ", ucp_get_version_string(), " ", kTransports);
}

}  // namespace esteira
