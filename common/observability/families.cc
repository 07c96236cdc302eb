#include "common/observability/families.h"

namespace esteira {

prometheus::Counter& CounterOf(prometheus::Registry& registry, const std::string& name,
                               const std::string& help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry).Add({});
}

prometheus::Gauge& GaugeOf(prometheus::Registry& registry, const std::string& name,
                           const std::string& help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry).Add({});
}

prometheus::Histogram& HistogramOf(prometheus::Registry& registry, const std::string& name,
                                   const std::string& help, const std::vector<double>& buckets) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add({}, buckets);
}

std::vector<double> ExponentialBuckets(double first, double factor, int count) {
  std::vector<double> buckets;
  for (double bound = first; count > 0; --count, bound *= factor) buckets.push_back(bound);
  return buckets;
}

std::vector<double> StepSecondsBuckets() { return ExponentialBuckets(0.001, 2, 20); }

}  // namespace esteira
