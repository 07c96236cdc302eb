// For ThreadSanitizer, which does not survive UCX's own handling of signals.
#include "tests/conformance/meshes.h"
#include "worker/communication/inproc/inproc_transport.h"

namespace esteira {

std::vector<MeshKind> MeshKinds() {
  return {{.name = "inproc", .sends_early = false, .make = MakeInprocTransports}};
}

}  // namespace esteira
