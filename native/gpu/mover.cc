#include "gpu/mover.h"

#include <algorithm>
#include <utility>

#include "gpu/move_kernel.h"

namespace halfstep::gpu {
namespace {

constexpr unsigned kThreads = 256;  // of a block: 4 KiB at 16 bytes each
constexpr size_t kBlockBytes = kThreads * 16;

}  // namespace

std::unique_ptr<Mover> Mover::open(Cuda& cuda, const char** function, int* error) {
  std::unique_ptr<Mover> mover(new Mover(cuda));
  *function = "cuModuleLoadData";
  *error = cuda.module_load_data(&mover->module_, kMoveKernel);
  if (*error != kSuccess) {
    mover->module_ = nullptr;
    return nullptr;
  }
  *function = "cuModuleGetFunction";
  *error = cuda.module_get_function(&mover->function_, mover->module_, kMoveKernelName);
  return *error == kSuccess ? std::move(mover) : nullptr;
}

Mover::~Mover() {
  if (module_ != nullptr) (void)cuda_.module_unload(module_);
}

int Mover::launch(Stream stream) {
  if (count_ == 0) return kSuccess;
  size_t longest = 0;
  for (size_t i = 0; i < count_; ++i) longest = std::max<size_t>(longest, pieces_[i].bytes);
  void* arguments[] = {pieces_.data()};
  const auto shares = static_cast<unsigned>(std::max<size_t>(1, (longest + kBlockBytes - 1) / kBlockBytes));
  const auto pieces = static_cast<unsigned>(std::exchange(count_, 0));
  return cuda_.launch_kernel(function_, pieces, shares, kThreads, stream, arguments);
}

}  // namespace halfstep::gpu
