#include "worker/kernels/cpu/table-inl.h"
#include "worker/kernels/cpu/tile_attention_backward-inl.h"
#include "worker/kernels/cpu/tile_attention_forward-inl.h"
#include "worker/kernels/cpu/tile_product-inl.h"

namespace esteira {
namespace {

constexpr TileLoops kTileLoops = {
    .pack_left = PackLeft, .pack_right = PackRight, .multiply = MultiplyBlock};

int64_t TileAttentionScratch(int64_t sequence, int64_t head_size) {
  const int64_t forward = ForwardScratch(nullptr, sequence, head_size).elements;
  const int64_t backward = BackwardScratch(nullptr, sequence, head_size).elements;
  return forward < backward ? backward : forward;
}

constexpr Loops TableWithTiles() {
  Loops loops = Table("x86-64-v4 with AMX");
  loops.tiles = &kTileLoops;
  loops.bf16.attention_scratch = TileAttentionScratch;
  loops.bf16.attention_forward = TileAttentionForward;
  loops.bf16.attention_backward = TileAttentionBackward;
  return loops;
}

}  // namespace

constexpr Loops kLoopsAmx = TableWithTiles();

}  // namespace esteira
