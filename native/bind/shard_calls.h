// shard_calls.h — what a long call of halfstep._shard raises, and how it reports its progress.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <exception>
#include <string>
#include <utility>

namespace halfstep::bind {

namespace nb = nanobind;

// Args: the code's name, the sentence. Raised as halfstep._shard.StartError.
struct StartError : std::exception {
  StartError(std::string code_name, std::string sentence_text)
      : code(std::move(code_name)), sentence(std::move(sentence_text)) {}
  const char* what() const noexcept override { return sentence.c_str(); }
  std::string code;
  std::string sentence;
};

// A Python call that reports progress. What it raises stops the start, and is raised again when that has been undone.
class Progress {
 public:
  explicit Progress(nb::object call) : call_(std::move(call)) {}
  bool operator()(const std::string& step, uint64_t done, uint64_t total) {
    const nb::gil_scoped_acquire locked;
    try {
      return nb::cast<bool>(call_(step, done, total));
    } catch (...) {
      raised_ = std::current_exception();
      return false;
    }
  }
  void raise_again() const {
    if (raised_) std::rethrow_exception(raised_);
  }

 private:
  nb::object call_;
  std::exception_ptr raised_;
};

}  // namespace halfstep::bind
