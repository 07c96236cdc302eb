#pragma once

#include <memory>

#include "absl/strings/string_view.h"

namespace prometheus {
class Collectable;
class Registry;
}  // namespace prometheus

namespace esteira {

// The standard process_* metrics of this process, read from /proc at each scrape.
std::shared_ptr<prometheus::Collectable> MakeProcessCollector();

// esteira_build_info{component, version} = 1.
void ExportBuildInfo(prometheus::Registry& registry, absl::string_view component,
                     absl::string_view version);

}  // namespace esteira
