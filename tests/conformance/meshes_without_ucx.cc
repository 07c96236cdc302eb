// For ThreadSanitizer, which does not survive UCX's own handling of signals; what UCX's transport
// does between ranks of one machine is here without it.
#include "tests/conformance/host_transports.h"
#include "tests/conformance/meshes.h"
#include "worker/communication/inproc/inproc_transport.h"

namespace esteira {

std::vector<MeshKind> MeshKinds() {
  return {{.name = "inproc", .sends_early = false, .make = MakeInprocTransports},
          {.name = "host", .sends_early = true, .make = MakeHostTransports}};
}

}  // namespace esteira
