// fork.h — what becomes of a client when its process forks or exits.
// Fork: the child handler does one thing, it bumps a number. What was opened under an older number belongs to the parent: the
// child leaks it and touches neither its memory's locks nor its descriptors.
// Exit: a handler stops the threads of all clients of this process before the destructors of what was constructed earlier run,
// so that nothing lands in memory that is being torn down.
#pragma once

#include <cstdint>

namespace halfstep::peer {

// Of this process: grows by one in every forked child.
uint64_t process_generation() noexcept;

// Something that has a thread. stop_for_exit() is called once, on the exiting thread, unless forget() came first.
class Exiting {
 public:
  virtual void stop_for_exit() noexcept = 0;

 protected:
  ~Exiting() = default;
};
void remember_for_exit(Exiting& who);
void forget_for_exit(Exiting& who);

}  // namespace halfstep::peer
