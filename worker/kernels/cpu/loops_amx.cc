#include "worker/kernels/cpu/table-inl.h"
#include "worker/kernels/cpu/tile_attention-inl.h"
#include "worker/kernels/cpu/tile_product-inl.h"

namespace esteira {
namespace {

constexpr TileLoops kTileLoops = {
    .pack_left = PackLeft, .pack_right = PackRight, .multiply = MultiplyBlock};

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
