// Internal to svg_chart.h: measures and colours of the picture.
#pragma once

#include <array>

#include "client/plan_views/stage_memory.h"
#include "client/plan_views/step_chart.h"

namespace esteira::svg {

inline constexpr double kWidth = 1440;
inline constexpr double kMargin = 32;
inline constexpr double kChartLeft = 112;
inline constexpr double kChartRight = 1096;
inline constexpr double kChartTop = 146;
inline constexpr double kMemoryLeft = 1176;
inline constexpr double kMemoryRight = 1340;
inline constexpr double kAxisHeight = 52;
inline constexpr int kMaxRows = 64;
// More boxes than a viewer draws at ease; beyond it what fills most of a pixel is drawn.
inline constexpr int kMaxBoxes = 20'000;

struct Look {
  const char* style;  // class
  const char* name;
};

inline constexpr std::array<Look, kNumActivities> kActivityLooks = {{
    {"f", "forward"},
    {"b", "backward"},
    {"i", "backward for inputs"},
    {"w", "backward for weights"},
    {"r", "recompute"},
    {"u", "update"},
}};

inline constexpr std::array<Look, kNumMemoryParts> kMemoryLooks = {{
    {"f", "parameters"},
    {"b", "gradients"},
    {"w", "optimizer"},
    {"r", "slots"},
    {"u", "workspace"},
}};

// Dark on light boxes, light on dark ones, so that numbers are read in both.
inline constexpr const char* kStyle = R"svg(<style>
text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; fill: #1f2933; }
.card { fill: #ffffff; }
.title { font-size: 22px; font-weight: 600; }
.sub { font-size: 14px; fill: #52606d; }
.label { font-size: 13px; font-weight: 600; }
.small { font-size: 12px; fill: #52606d; }
.num { font-size: 11px; text-anchor: middle; }
.end { text-anchor: end; }
.mid { text-anchor: middle; }
.lane { fill: #f1f4f8; }
.grid { stroke: #d5dce4; stroke-width: 1; }
.budget { stroke: #d64545; stroke-width: 2; }
.f { fill: #86bdf0; } .b { fill: #93d6a8; } .i { fill: #6fd0c5; } .w { fill: #f7cd6b; } .r { fill: #c9b3ea; } .u { fill: #b6c0cc; }
.c1 { fill-opacity: .62; } .c2 { fill-opacity: .42; } .c3 { fill-opacity: .28; }
.ta { fill: #3f7fc4; } .tg { fill: #3f9a63; } .sg { fill: #c2409b; } .sr { fill: #e2793b; } .sn { fill: #7b8794; }
.x { fill: #e25555; fill-opacity: .14; } .xl { stroke: #e25555; stroke-width: 1.5; stroke-opacity: .55; }
@media (prefers-color-scheme: dark) {
text { fill: #eef2f6; }
.card { fill: #12181f; }
.sub, .small { fill: #9fb0c0; }
.lane { fill: #1d2630; }
.grid { stroke: #33404d; }
.f { fill: #2e6fb3; } .b { fill: #2f8a55; } .i { fill: #1d857b; } .w { fill: #a3740f; } .r { fill: #7354ad; } .u { fill: #596675; }
.ta { fill: #6cb2f5; } .tg { fill: #62cf8f; } .sg { fill: #ea7fc8; } .sr { fill: #f59a62; } .sn { fill: #9aa5b1; }
}
</style>
<defs><pattern id="wait" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect class="x" width="6" height="6"/><line class="xl" x1="0" y1="0" x2="0" y2="6"/></pattern></defs>
)svg";

}  // namespace esteira::svg
