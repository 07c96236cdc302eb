// Short forms of prometheus-cpp's builders, for metrics without labels.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <string>
#include <vector>

namespace esteira {

prometheus::Counter& CounterOf(prometheus::Registry& registry, const std::string& name,
                               const std::string& help);
prometheus::Gauge& GaugeOf(prometheus::Registry& registry, const std::string& name,
                           const std::string& help);
prometheus::Histogram& HistogramOf(prometheus::Registry& registry, const std::string& name,
                                   const std::string& help, const std::vector<double>& buckets);

// first, first * factor, ... (count values).
std::vector<double> ExponentialBuckets(double first, double factor, int count);
// 1 ms to about 9 minutes.
std::vector<double> StepSecondsBuckets();

}  // namespace esteira
