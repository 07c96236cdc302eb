#include "worker/device/device.h"

#include <utility>

namespace esteira {

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this == &other) return *this;
  if (device_ != nullptr) device_->Free(data_, bytes_, kind_);
  device_ = std::exchange(other.device_, nullptr);
  kind_ = other.kind_;
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

Buffer::~Buffer() {
  if (device_ != nullptr) device_->Free(data_, bytes_, kind_);
}

}  // namespace esteira
