#include "sim/farm.h"

#include <malloc.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <new>
#include <thread>
#include <vector>

namespace halfstep::sim {
namespace {

using Seconds = std::chrono::duration<double>;

// What a child says, in memory shared with its parent.
struct Post {
  std::atomic<uint64_t> seed{0};
  std::atomic<uint64_t> done{0};
  std::atomic<bool> broke_rule{false};
  Tally tally;
};

struct Child {
  pid_t pid = 0;
  uint64_t seed = 0;  // when it was last seen to move on
  double moved_at_s = 0;
  double moved_at_cpu_s = 0;
};

template <typename T>
class Shared {
 public:
  explicit Shared(size_t count)
      : bytes_(count * sizeof(T)),
        items_(static_cast<T*>(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
    if (items_ == MAP_FAILED) throw std::bad_alloc();
    for (size_t i = 0; i < count; ++i) new (&items_[i]) T();
  }
  ~Shared() { munmap(items_, bytes_); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  T& operator[](size_t at) noexcept { return items_[at]; }

 private:
  size_t bytes_;
  T* items_;
};

std::atomic<bool> interrupted{false};

class InterruptGuard {
 public:
  InterruptGuard() {
    struct sigaction action {};
    action.sa_handler = [](int) { interrupted = true; };
    sigaction(SIGINT, &action, &before_int_);
    sigaction(SIGTERM, &action, &before_term_);
  }
  ~InterruptGuard() {
    sigaction(SIGINT, &before_int_, nullptr);
    sigaction(SIGTERM, &before_term_, nullptr);
  }

 private:
  struct sigaction before_int_ {};
  struct sigaction before_term_ {};
};

[[noreturn]] void work(const FarmConfig& config, uint32_t job, Post& post) {
  signal(SIGINT, SIG_IGN);  // the parent ends us
  signal(SIGTERM, SIG_DFL);
  // A run takes and gives back the same megabytes again and again: the kernel need not see that.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  for (uint64_t at = job; at < config.seeds; at += config.jobs) {
    post.seed = config.start + at;
    const Outcome outcome = run(make_history(config.start + at, config.history));
    post.tally.add(outcome.tally);
    ++post.done;
    if (!outcome.violation.has_value()) continue;
    post.broke_rule = true;
    break;
  }
  _exit(0);
}

// Of a machine that is busy with other things a seed gets little: that is no fault of its own. One that waits for nothing gets
// none at all.
constexpr uint32_t kClockPerCpu = 30;

// Of a child so far; 0 when it is gone.
double cpu_seconds(pid_t pid) noexcept {
  clockid_t clock = 0;
  timespec spent{};
  if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &spent) != 0) return 0;
  return static_cast<double>(spent.tv_sec) + static_cast<double>(spent.tv_nsec) / 1e9;
}

void show_progress(const FarmConfig& config, uint64_t done, double seconds) {
  std::fprintf(stderr, "\r%llu of %llu seeds, %.0f a second  ", static_cast<unsigned long long>(done),
               static_cast<unsigned long long>(config.seeds), seconds > 0 ? static_cast<double>(done) / seconds : 0);
}

}  // namespace

FarmResult run_seeds(const FarmConfig& config) {
  FarmResult result;
  interrupted = false;
  const InterruptGuard guard;
  Shared<Post> posts(config.jobs);
  std::vector<Child> children(config.jobs);
  const auto began = std::chrono::steady_clock::now();
  std::fflush(nullptr);
  for (uint32_t job = 0; job < config.jobs; ++job) {
    posts[job].seed = config.start + job;
    children[job].pid = fork();
    if (children[job].pid == 0) work(config, job, posts[job]);
  }
  const auto fail = [&](uint64_t seed, std::string why) {
    if (!result.failure.has_value() || seed < result.failure->seed) result.failure = Failure{seed, std::move(why)};
  };
  const auto stop_all = [&] {
    for (const Child& child : children) {
      if (child.pid != 0) kill(child.pid, SIGKILL);
    }
  };
  uint32_t running = config.jobs;
  bool stopped = false;
  double shown_at_s = 0;
  while (running > 0) {
    const double now_s = Seconds(std::chrono::steady_clock::now() - began).count();
    for (uint32_t job = 0; job < config.jobs; ++job) {
      Child& child = children[job];
      if (child.pid == 0) continue;
      int status = 0;
      if (waitpid(child.pid, &status, WNOHANG) == child.pid) {
        child.pid = 0;
        --running;
        if (posts[job].broke_rule) fail(posts[job].seed, {});
        if (!stopped && WIFSIGNALED(status)) fail(posts[job].seed, "signal " + std::to_string(WTERMSIG(status)));
        if (!stopped && WIFEXITED(status) && WEXITSTATUS(status) != 0) {
          fail(posts[job].seed, "exit " + std::to_string(WEXITSTATUS(status)));
        }
        continue;
      }
      if (posts[job].seed != child.seed) {
        child.seed = posts[job].seed;
        child.moved_at_s = now_s;
        child.moved_at_cpu_s = cpu_seconds(child.pid);
      } else if (!stopped && now_s - child.moved_at_s > config.seed_seconds_max) {
        const bool spins = cpu_seconds(child.pid) - child.moved_at_cpu_s > config.seed_seconds_max;
        const bool waits = now_s - child.moved_at_s > double{kClockPerCpu} * config.seed_seconds_max;
        if (spins || waits) fail(child.seed, "hangs");
      }
    }
    if ((result.failure.has_value() || interrupted) && !stopped) {
      stopped = true;
      stop_all();
    }
    uint64_t done = 0;
    for (uint32_t job = 0; job < config.jobs; ++job) done += posts[job].done;
    if (config.progress && now_s - shown_at_s > 0.2) {
      shown_at_s = now_s;
      show_progress(config, done, now_s);
    }
    if (running > 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  if (config.progress) std::fputs("\r\x1b[K", stderr);
  result.seconds = Seconds(std::chrono::steady_clock::now() - began).count();
  result.interrupted = interrupted;
  for (uint32_t job = 0; job < config.jobs; ++job) {
    result.seeds_done += posts[job].done;
    result.tally.add(posts[job].tally);
  }
  return result;
}

std::optional<Violation> run_apart(const History& history, uint32_t seconds_max) {
  struct Answer {
    bool done = false;
    bool broken = false;
    Rule rule = Rule::Stuck;
    uint32_t step = 0;
    char what[512] = {};
  };
  Shared<Answer> answer(1);
  std::fflush(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    signal(SIGINT, SIG_IGN);
    const rlimit cpu{.rlim_cur = seconds_max, .rlim_max = RLIM_INFINITY};
    setrlimit(RLIMIT_CPU, &cpu);
    alarm(kClockPerCpu * seconds_max);
    const Outcome outcome = run(history);
    if (outcome.violation.has_value()) {
      answer[0].broken = true;
      answer[0].rule = outcome.violation->rule;
      answer[0].step = outcome.violation->step;
      std::strncpy(answer[0].what, outcome.violation->what.c_str(), sizeof answer[0].what - 1);
    }
    answer[0].done = true;
    _exit(0);
  }
  int status = 0;
  while (waitpid(pid, &status, 0) != pid) {
  }
  const auto steps = static_cast<uint32_t>(history.ops.size());
  if (!answer[0].done) {
    const int signal_number = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    const bool stuck = signal_number == SIGALRM || signal_number == SIGXCPU;
    if (stuck) return Violation{Rule::Stuck, "the run does not end", steps};
    return Violation{Rule::Ended, "signal " + std::to_string(signal_number), steps};
  }
  if (!answer[0].broken) return {};
  return Violation{answer[0].rule, answer[0].what, answer[0].step};
}

}  // namespace halfstep::sim
