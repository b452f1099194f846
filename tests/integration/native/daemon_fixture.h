// daemon_fixture.h — for tests of both ends: a daemon in this process, over a store in a folder of its own.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <memory>
#include <string>

#include "base/units.h"
#include "shard/server.h"

namespace halfstep {

class DaemonFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "halfstep-both-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    config_.store_path = folder_ + "/store";
    config_.store_bytes = 1 * GiB;
    config_.arena_bytes = 64 * MiB;
    config_.huge_pages = false;
    config_.listen = {"127.0.0.1:0", "unix:" + folder_ + "/socket"};
    configure();
    start();
  }
  void TearDown() override {
    server_.reset();
    std::filesystem::remove_all(folder_);
  }
  // Changes config_, before the first start.
  virtual void configure() {}
  void start() {
    const Fault fault = shard::Server::start(config_, &server_);
    ASSERT_TRUE(fault.ok()) << fault.what;
  }
  void restart() {
    server_.reset();
    start();
  }
  // "127.0.0.1:port" or the unix socket.
  std::string address(size_t which = 0) const { return server_->facts().listening.at(which); }

  std::string folder_;
  shard::Config config_;
  std::unique_ptr<shard::Server> server_;
};

}  // namespace halfstep
