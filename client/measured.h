// What a job's plan predicted beside what its steps took. Pure.
#pragma once

#include <string>
#include <vector>

#include "esteira/v1/cluster.pb.h"

namespace esteira {

// Rows of a table, its head first: step time, bubble, exposed communication, peak memory, and the
// three instruction kinds that compute and whose seconds differ most. `steps` are averaged; none,
// or a job without a prediction, gives no rows. (The seconds of transfers are left out: measured
// ones hold the wait for the other side.)
std::vector<std::vector<std::string>> PredictedAndMeasured(
    const v1::Job& job, const std::vector<v1::StepRecord>& steps);

}  // namespace esteira
