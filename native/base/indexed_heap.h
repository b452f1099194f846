// indexed_heap.h — a binary heap of pointers whose elements know their places, so that any of them can be taken out.
// `Before` says which of two comes first; `At` is where an element keeps its place.
// Invariant: while an element is in the heap, what `Before` looks at does not change. Thread: one.
#pragma once

#include <cstddef>
#include <vector>

namespace halfstep {

template <typename T, bool (*Before)(const T*, const T*) noexcept, size_t T::*At>
class IndexedHeap {
 public:
  bool empty() const noexcept { return heap_.empty(); }
  size_t size() const noexcept { return heap_.size(); }
  T* front() const noexcept { return heap_.front(); }
  auto begin() const noexcept { return heap_.begin(); }
  auto end() const noexcept { return heap_.end(); }
  bool has(const T& element) const noexcept { return element.*At < heap_.size() && heap_[element.*At] == &element; }

  // Allocates only when there are more than ever before.
  void push(T& element) {
    heap_.push_back(&element);
    element.*At = heap_.size() - 1;
    sift_up(heap_.size() - 1);
  }
  void remove(T& element) noexcept {
    const size_t at = element.*At;
    T* last = heap_.back();
    heap_.pop_back();
    if (last == &element) return;
    place(last, at);
    sift_up(at);
    sift_down(last->*At);
  }

 private:
  void place(T* element, size_t at) noexcept {
    heap_[at] = element;
    element->*At = at;
  }
  void sift_up(size_t at) noexcept {
    T* element = heap_[at];
    while (at != 0) {
      const size_t parent = (at - 1) / 2;
      if (!Before(element, heap_[parent])) break;
      place(heap_[parent], at);
      at = parent;
    }
    place(element, at);
  }
  void sift_down(size_t at) noexcept {
    T* element = heap_[at];
    for (;;) {
      size_t child = 2 * at + 1;
      if (child >= heap_.size()) break;
      if (child + 1 < heap_.size() && Before(heap_[child + 1], heap_[child])) ++child;
      if (!Before(heap_[child], element)) break;
      place(heap_[child], at);
      at = child;
    }
    place(element, at);
  }

  std::vector<T*> heap_;
};

}  // namespace halfstep
