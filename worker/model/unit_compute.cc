#include "worker/model/unit_compute.h"

#include "common/base/status_macros.h"
#include "worker/model/embedding.h"
#include "worker/model/gpt2_block.h"
#include "worker/model/head.h"
#include "worker/model/llama_block.h"

namespace esteira {

std::unique_ptr<UnitCompute> MakeUnitCompute(const ModelSpec& model, const UnitSpec& unit,
                                             Precision precision) {
  switch (unit.kind) {
    case UnitKind::kEmbedding: return std::make_unique<Embedding>(model, unit);
    case UnitKind::kBlock:
      if (model.architecture == Architecture::kGpt2) {
        return std::make_unique<Gpt2Block>(model, unit, precision);
      }
      return std::make_unique<LlamaBlock>(model, unit, precision);
    case UnitKind::kHead: return std::make_unique<Head>(model, unit, precision);
    case UnitKind::kTied: break;
  }
  CHECK(!"units of parameters only never compute");
  return nullptr;
}

}  // namespace esteira
