// mover.h — small pieces between pinned host memory and a GPU's, moved by the GPU itself: many of them in one launch of a
// kernel (move_kernel.h). A copy engine takes some 2 us for each piece, whatever its size (bench/gpu_copies.py).
// Invariants: what a launch needs is copied by the launch; the pieces' memory is in use until the stream is past it. The module
// goes before its context does, and after all of its launches are over.
// Thread: one at a time, with the context pushed.
#pragma once

#include <array>
#include <memory>

#include "gpu/cuda.h"

namespace halfstep::gpu {

class Mover {
 public:
  struct Piece {
    uint64_t from = 0;
    uint64_t to = 0;
    uint64_t bytes = 0;
  };
  static constexpr size_t kPieces = 128;  // of one launch: 3 KiB of the 4 that its arguments may have
  // The largest that was measured: 45 GB/s to the device, beside 16 by a copy for each and 34 by copies of 256 KiB
  // (docs/performance.md). Beyond it copies leave the multiprocessors to the model.
  static constexpr size_t kPieceBytesMax = 64 * 1024;

  // The driver translates the program here, which takes it some milliseconds, once. Null with its error and the function.
  static std::unique_ptr<Mover> open(Cuda& cuda, const char** function, int* error);
  ~Mover();
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  bool full() const noexcept { return count_ == kPieces; }
  bool empty() const noexcept { return count_ == 0; }
  void add(const Piece& piece) noexcept { pieces_[count_++] = piece; }
  // Of those that were added, nothing.
  void clear() noexcept { count_ = 0; }
  // Those that were added since; they are forgotten, whatever comes of it.
  int launch(Stream stream);

 private:
  explicit Mover(Cuda& cuda) noexcept : cuda_(cuda) {}

  Cuda& cuda_;
  Module module_ = nullptr;
  Function function_ = nullptr;
  std::array<Piece, kPieces> pieces_{};
  size_t count_ = 0;
};
static_assert(sizeof(Mover::Piece) == 24 && sizeof(Mover::Piece) * Mover::kPieces == 3072, "as move_kernel.h has them");

}  // namespace halfstep::gpu
