#include "tests/conformance/meshes.h"

#include "worker/communication/inproc/inproc_transport.h"

namespace esteira {

std::vector<MeshKind> MeshKinds() { return {{"inproc", MakeInprocTransports}}; }

}  // namespace esteira
