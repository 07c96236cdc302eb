// Worker events -> state. What follows from them is decided afterwards (decide.h).
#pragma once

#include <cstdint>

#include "coordinator/controller/turn.h"

namespace esteira {

// A message on `session`. A refused registration, a message of an incarnation that is over, or of a
// worker that never registered closes the session. A report of another epoch or place is dropped
// and counted, and its trainer aborted.
void ApplyMessage(Turn& turn, int64_t session, const WorkerMessage& message);

void ApplyDisconnect(Turn& turn, int64_t session);

// "trainer killed by signal 9 (SIGKILL)".
std::string DescribeExit(const ExitReport& exit);

}  // namespace esteira
