// Why a layout was chosen, and why nothing fits: sentences for people. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/planner/search.h"

namespace esteira {

// "4 stages x 2 replicas, zb_h1, ZeRO 1, micro-batch size 2".
std::string LayoutText(const Layout& layout);
std::string BytesText(int64_t bytes);  // "1.5 GiB"

// The chosen layout, then at most three others and why each lost.
std::vector<std::string> Explain(const SearchResult& result);

// Nothing fits: what is short on which rank, by how much, and the smallest change that would fit.
absl::Status OutOfMemory(const JobSpec& job, const ClusterSpec& cluster, const Candidate& smallest);

}  // namespace esteira
