// server_fixture.h — for tests: a server over a store file in a directory of its own.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>

#include "base/units.h"
#include "shard/config.h"
#include "shard/metrics_fixture.h"
#include "shard/server.h"

namespace halfstep::shard {

class ServerFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    char directory[] = "/tmp/halfstep-server-XXXXXX";
    ASSERT_NE(mkdtemp(directory), nullptr);
    directory_ = directory;
    config_.store_path = directory_ + "/store.hs";
    config_.huge_pages = false;
    config_.connection_credit_bytes = 4 * MiB;
    config_.listen = {"unix:" + directory_ + "/s"};
  }
  void TearDown() override {
    server_.reset();
    std::filesystem::remove_all(directory_);
  }
  void start() {
    server_.reset();
    const Fault fault = Server::start(config_, &server_);
    if (!fault.ok()) throw std::runtime_error(fault.what);
  }
  // The sentence of a start that is refused.
  std::string refusal() {
    std::unique_ptr<Server> server;
    const Fault fault = Server::start(config_, &server);
    EXPECT_FALSE(fault.ok());
    EXPECT_EQ(server, nullptr);
    return fault.what;
  }
  double metric(const std::string& name) const { return value_of(server_->metrics(), name); }

  Config config_;
  std::string directory_;
  std::unique_ptr<Server> server_;
};

}  // namespace halfstep::shard
