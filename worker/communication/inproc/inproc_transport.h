#pragma once

#include <memory>
#include <vector>

#include "worker/communication/transport.h"

namespace esteira {

// A mesh of `ranks` transports inside one process: every distributed test runs without a network. A
// send completes only when its receive has copied the bytes (rendezvous), the strictest order that
// a real transport can have.
std::vector<std::unique_ptr<Transport>> MakeInprocTransports(int ranks);

}  // namespace esteira
