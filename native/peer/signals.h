// signals.h — threads of the client's own take no signals: those are the application's.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace halfstep::peer {

// A thread that is started while one exists inherits that every signal is blocked.
class SignalsBlocked {
 public:
  SignalsBlocked() noexcept {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace halfstep::peer
