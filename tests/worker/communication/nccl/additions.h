#pragma once

#include <bit>
#include <cstdint>
#include <span>

#include "worker/communication/nccl/nccl_collectives.h"

namespace esteira {

// What AddPieces asks for, in host memory and at once.
inline void AddPiecesOnHost(PieceType type, std::span<const void* const> pieces, float* sums,
                            size_t count) {
  const auto value = [&](size_t piece, size_t i) {
    if (type == PieceType::kFp32) return static_cast<const float*>(pieces[piece])[i];
    const uint32_t bits = static_cast<const uint16_t*>(pieces[piece])[i];
    return std::bit_cast<float>(bits << 16);
  };
  for (size_t i = 0; i < count; ++i) {
    float sum = value(0, i);
    for (size_t piece = 1; piece < pieces.size(); ++piece) sum += value(piece, i);
    sums[i] = sum;
  }
}

}  // namespace esteira
