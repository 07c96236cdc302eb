#pragma once

#include <memory>
#include <vector>

#include "worker/communication/transport.h"

namespace esteira {

// A mesh of `ranks` HostMeshes inside this process, without UCX: what one of them reports all are
// told at once, and a transport that is destroyed departs.
std::vector<std::unique_ptr<Transport>> MakeHostTransports(int ranks);

}  // namespace esteira
