#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "client/commands.h"
#include "client/connection.h"
#include "client/program.h"
#include "client/server.h"

namespace esteira {

ExitCode ShowHealth(const std::string& server_flag) {
  const absl::StatusOr<std::string> server = ResolveServer(server_flag);
  if (!server.ok()) return ReportError(server.status());
  std::string state;
  const absl::Status status = Connection(*server, absl::Seconds(5)).Health("", state);
  if (!status.ok()) return ReportError(status);
  std::cout << *server << " " << state << "\n";
  return state == "SERVING" ? kExitOk : kExitNotConnected;
}

ExitCode ShowVersion(const std::string& server_flag) {
  std::cout << "client " << ESTEIRA_VERSION << "\n";
  const absl::StatusOr<std::string> server = ResolveServer(server_flag);
  if (!server.ok()) return kExitOk;  // no server is named: the client's version is the answer
  v1::Version version;
  const absl::Status status = Connection(*server, absl::Seconds(5)).GetVersion(version);
  if (!status.ok()) return ReportError(status);
  std::cout << "server " << version.version() << " at " << *server << "\n";
  return kExitOk;
}

ExitCode RunWorkerCommand(const std::string& command, const std::vector<std::string>& arguments) {
  std::vector<std::string> line = {ProgramPath("esteira-worker"), command};
  line.insert(line.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  pointers.reserve(line.size() + 1);
  for (std::string& argument : line) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  execvp(pointers[0], pointers.data());
  return ReportError(
      absl::InternalError(absl::StrCat("cannot run ", line[0], ": ", std::strerror(errno))));
}

}  // namespace esteira
