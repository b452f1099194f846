// numa_fixture.h — for tests: memory nodes that this machine does not have, and a kernel that refuses the calls about them.
#pragma once

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <string>

namespace halfstep::numa {

// `directory` says what /sys/devices/system/node of such a machine would. cores: "" where a node has none.
inline void write_node(const std::string& directory, uint32_t number, const std::string& cores) {
  const std::filesystem::path node = std::filesystem::path(directory) / ("node" + std::to_string(number));
  std::filesystem::create_directories(node);
  std::ofstream(node / "cpulist") << cores << "\n";
}
inline void write_memory(const std::string& directory, const std::string& nodes) {
  std::ofstream(std::filesystem::path(directory) / "has_memory") << nodes << "\n";
}

// From here on this thread, and those that it starts, get EPERM for the calls about memory nodes, as in a container by default.
// There is no way back: call it in a process that ends. False where the kernel has no filters.
inline bool refuse_node_calls() {
  const auto refuse = [](long call, unsigned char forward) {
    return sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(call), forward, 0);
  };
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      refuse(SYS_mbind, 4),
      refuse(SYS_set_mempolicy, 3),
      refuse(SYS_get_mempolicy, 2),
      refuse(SYS_move_pages, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
  };
  const sock_fprog program{.len = sizeof(code) / sizeof(code[0]), .filter = code};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

}  // namespace halfstep::numa
