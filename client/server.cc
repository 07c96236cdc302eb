#include "client/server.h"

#include <yaml-cpp/yaml.h>

#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/local_cluster.h"
#include "common/base/file_system.h"
#include "common/base/names.h"
#include "common/base/status_macros.h"

namespace esteira {
namespace {

std::string FromEnvironment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string FolderOf(const char* variable, absl::string_view under_home) {
  const std::string folder = FromEnvironment(variable);
  if (!folder.empty()) return absl::StrCat(folder, "/esteira");
  return absl::StrCat(FromEnvironment("HOME"), "/", under_home, "/esteira");
}

std::string ConfigurationPath() {
  return absl::StrCat(FolderOf("XDG_CONFIG_HOME", ".config"), "/config.yaml");
}

// `server:` of the configuration file; empty when there is no file or no such key.
absl::StatusOr<std::string> FromConfiguration() {
  const std::string path = ConfigurationPath();
  RealFileSystem files;
  if (!files.Exists(path)) return std::string();
  ASSIGN_OR_RETURN(const std::string text, files.Read(path));
  try {
    const YAML::Node root = YAML::Load(text);
    if (root.IsNull()) return std::string();
    if (!root.IsMap()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": not a map of settings"));
    }
    const YAML::Node server = root["server"];
    return server && !server.IsNull() ? server.as<std::string>() : std::string();
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", error.what()));
  }
}

// `server` as `origin` names it, when a client can connect to it.
absl::StatusOr<std::string> Checked(std::string server, absl::string_view origin) {
  const absl::Status status = ParseHostPort(server, /*least_port=*/1).status();
  if (status.ok()) return server;
  return absl::InvalidArgumentError(absl::StrCat(origin, ": ", status.message()));
}

}  // namespace

std::string StateFolder() { return FolderOf("XDG_STATE_HOME", ".local/state"); }

absl::StatusOr<std::string> ResolveServer(const std::string& flag) {
  if (!flag.empty()) return Checked(flag, "--server");
  if (std::string server = FromEnvironment("ESTEIRA_SERVER"); !server.empty()) {
    return Checked(std::move(server), "ESTEIRA_SERVER");
  }
  ASSIGN_OR_RETURN(std::string configured, FromConfiguration());
  if (!configured.empty()) {
    return Checked(std::move(configured), absl::StrCat(ConfigurationPath(), ": server"));
  }
  absl::StatusOr<LocalCluster> local = DefaultLocalCluster();
  if (local.ok()) return local->server;
  if (!absl::IsNotFound(local.status())) return local.status();
  return absl::UnavailableError("no coordinator is known");
}

}  // namespace esteira
