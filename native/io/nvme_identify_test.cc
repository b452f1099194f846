#include "io/nvme_identify.h"

#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/units.h"
#include "io/nvme_namespace.h"

namespace halfstep::io {
namespace {

constexpr uint64_t kBlocks = 1000;

// Identify structures of a healthy drive, by the specification's offsets.
struct Pages {
  std::array<std::byte, 4096> of_namespace{};
  std::array<std::byte, 4096> of_controller{};

  Pages() {
    store_le(of_namespace.data(), kBlocks);
    of_namespace[25] = std::byte{1};  // two formats
    of_namespace[26] = std::byte{1};  // the second in use
    of_namespace[128 + 2] = std::byte{9};
    of_namespace[128 + 4 + 2] = std::byte{12};
    store_le(of_namespace.data() + 102, uint16_t{3});
    std::memset(of_controller.data() + 4, ' ', 68);
    std::memcpy(of_controller.data() + 4, "S1", 2);
    std::memcpy(of_controller.data() + 24, "Drive \x01of ours", 14);
    std::memcpy(of_controller.data() + 64, "1.0", 3);
    of_controller[77] = std::byte{5};
    of_controller[525] = std::byte{1};
    store_le(of_controller.data() + 520, uint16_t{1 << 2});
    store_le(of_controller.data() + 96, uint32_t{1} << 19);
  }
};

TEST(NvmeIdentify, TellsAHealthyDrive) {
  const Pages pages;
  NvmeNamespaceFormat format;
  EXPECT_EQ(parse_nvme_namespace(pages.of_namespace, &format), "");
  EXPECT_EQ(format.bytes, kBlocks * 4096);
  EXPECT_EQ(format.lba_bytes, 4096U);
  EXPECT_EQ(format.endurance_group, 3U);
  NvmeController controller;
  EXPECT_EQ(parse_nvme_controller(pages.of_controller, &controller), "");
  EXPECT_EQ(controller.model, "Drive  of ours");
  EXPECT_EQ(controller.serial, "S1");
  EXPECT_EQ(controller.firmware, "1.0");
  EXPECT_EQ(controller.transfer_bytes_max, 128 * KiB);
  EXPECT_TRUE(controller.volatile_cache);
  EXPECT_TRUE(controller.deallocates);
  EXPECT_TRUE(controller.places_data);
}

TEST(NvmeIdentify, TellsADriveThatHasNothing) {
  Pages pages;
  for (const size_t at : {77, 525, 520, 98}) pages.of_controller[at] = std::byte{0};
  NvmeController controller;
  EXPECT_EQ(parse_nvme_controller(pages.of_controller, &controller), "");
  EXPECT_EQ(controller.transfer_bytes_max, 0U);
  EXPECT_FALSE(controller.volatile_cache || controller.deallocates || controller.places_data);
  pages.of_controller[77] = std::byte{255};
  EXPECT_EQ(parse_nvme_controller(pages.of_controller, &controller), "");
  EXPECT_EQ(controller.transfer_bytes_max, 0U) << "a limit beyond all numbers is none";
}

TEST(NvmeIdentify, RefusesFormatsThatItCannotWrite) {
  NvmeNamespaceFormat format;
  Pages pages;
  pages.of_namespace[128 + 4] = std::byte{8};
  EXPECT_EQ(
      parse_nvme_namespace(pages.of_namespace, &format),
      "LBA format 1 has 8 bytes of metadata a block, and 0 are needed: format the namespace without (`nvme format --lbaf`)");
  pages = Pages();
  pages.of_namespace[128 + 4 + 2] = std::byte{13};
  EXPECT_EQ(parse_nvme_namespace(pages.of_namespace, &format).rfind("LBA format 1 has blocks of 2^13 bytes", 0), 0U);
  pages = Pages();
  pages.of_namespace[26] = std::byte{5};
  EXPECT_EQ(parse_nvme_namespace(pages.of_namespace, &format), "LBA format 5: the drive has 2");
  pages = Pages();
  store_le(pages.of_namespace.data(), uint64_t{0});
  EXPECT_EQ(parse_nvme_namespace(pages.of_namespace, &format), "a namespace of 0 blocks of 4096 bytes");
  store_le(pages.of_namespace.data(), std::numeric_limits<uint64_t>::max());
  EXPECT_NE(parse_nvme_namespace(pages.of_namespace, &format), "") << "more bytes than can be counted";
  EXPECT_EQ(parse_nvme_namespace(ConstBytes(pages.of_namespace).first(4095), &format),
            "Identify Namespace: 4095 bytes, where 4096 belong");
}

TEST(NvmeIdentify, ReadsPlacementIdentifiersAndRefusesWhatIsNone) {
  std::array<std::byte, 4096> page{};
  store_le(page.data() + 14, uint16_t{3});
  for (uint16_t at = 0; at < 3; ++at) store_le(page.data() + 16 + size_t{at} * 32, static_cast<uint16_t>(7 * at));
  std::vector<uint16_t> ids;
  EXPECT_EQ(parse_nvme_placements(page, &ids), "");
  EXPECT_EQ(ids, (std::vector<uint16_t>{0, 7, 14}));
  EXPECT_NE(parse_nvme_placements(ConstBytes(page).first(16 + 2 * 32), &ids), "") << "cut";
  store_le(page.data() + 14, uint16_t{129});
  EXPECT_EQ(parse_nvme_placements(page, &ids), "reclaim unit handles: the drive names 129, and there are 1 to 128");
  EXPECT_TRUE(ids.empty());
}

TEST(NvmeIdentify, ReadsWhatTheDriveCounts) {
  std::array<std::byte, 512> smart{};
  store_le(smart.data() + 48, uint64_t{2});
  NvmeWritten written;
  EXPECT_EQ(parse_nvme_smart(smart, &written), "");
  EXPECT_EQ(written.host_bytes, 1'024'000U);
  EXPECT_EQ(written.media_bytes, 0U);
  store_le(smart.data() + 56, uint64_t{1});
  EXPECT_EQ(parse_nvme_smart(smart, &written), "");
  EXPECT_EQ(written.host_bytes, std::numeric_limits<uint64_t>::max()) << "what does not fit is the most that fits";
  std::array<std::byte, 64> placement{};
  store_le(placement.data(), uint64_t{100});
  store_le(placement.data() + 16, uint64_t{150});
  EXPECT_EQ(parse_nvme_placement_log(placement, &written), "");
  EXPECT_EQ(written.host_bytes, 100U);
  EXPECT_EQ(written.media_bytes, 150U);
}

// A drive that answers by its table; each command is remembered.
struct Answers {
  Pages pages;
  std::vector<nvme_passthru_cmd> commands;
  int admin_answer = 0, io_answer = 0;

  NvmeNamespace::Ways ways() {
    const auto answer = [this](nvme_passthru_cmd& command, int result, ConstBytes page) {
      commands.push_back(command);
      if (result == 0) std::memcpy(reinterpret_cast<void*>(command.addr), page.data(), command.data_len);
      return result;
    };
    return {[this, answer](nvme_passthru_cmd& command) {
              return answer(command, admin_answer, command.cdw10 == 0 ? pages.of_namespace : pages.of_controller);
            },
            [this, answer](nvme_passthru_cmd& command) {
              std::array<std::byte, 4096> page{};
              store_le(page.data() + 14, uint16_t{2});
              store_le(page.data() + 16 + 32, uint16_t{1});
              return answer(command, io_answer, page);
            }};
  }
};

TEST(NvmeNamespace, TakesTheNarrowestOfDriveAndDriver) {
  Answers drive;
  NvmeFacts facts;
  facts.target.id = 1;
  EXPECT_TRUE(
      identify_nvme(drive.ways(), {.transfer_bytes_max = 96 * KiB, .segments_max = 20, .polled = false}, kBlocks * 4096, &facts)
          .ok());
  EXPECT_EQ(facts.target.lba_shift, 12U);
  EXPECT_EQ(facts.transfer_bytes_max, 96 * KiB) << "of the driver; the drive takes 128 KiB";
  EXPECT_EQ(facts.scattered_bytes_max, 64 * KiB) << "16 pages, of 20 pieces at most";
  EXPECT_EQ(facts.placements, (std::vector<uint16_t>{0, 1}));
  EXPECT_NE(facts.why_not_polled, "");
  ASSERT_EQ(drive.commands.size(), 3U);
  EXPECT_EQ(drive.commands[2].opcode, 0x12);
  EXPECT_EQ(drive.commands[2].cdw10, 1U);
}

TEST(NvmeNamespace, SaysWhatTheDriveOrTheKernelRefuses) {
  Answers drive;
  NvmeFacts facts;
  drive.admin_answer = -EACCES;
  Fault fault = identify_nvme(drive.ways(), {}, kBlocks * 4096, &facts);
  EXPECT_TRUE(fault.status == Code::Unsupported);
  EXPECT_EQ(
      fault.what,
      "identifying the namespace: EACCES (Permission denied); let this user read and write the device, and on Linux before "
      "6.2 grant CAP_SYS_ADMIN");
  drive.admin_answer = 0x4002;
  EXPECT_EQ(identify_nvme(drive.ways(), {}, kBlocks * 4096, &facts).what, "identifying the namespace: status 0x4002");
  drive.admin_answer = 0;
  EXPECT_EQ(identify_nvme(drive.ways(), {}, 4096, &facts).what,
            "the namespace has 4096000 bytes, and its block device 4096: they are not the same");
  drive.io_answer = 0x4001;
  EXPECT_TRUE(identify_nvme(drive.ways(), {}, kBlocks * 4096, &facts).ok()) << "it is written without placement";
  EXPECT_TRUE(facts.placements.empty());
  EXPECT_EQ(facts.why_no_placements, "asking for placement identifiers: status 0x4001");
}

TEST(NvmeNamespace, IsNoOtherCharacterDevice) {
  std::string why;
  EXPECT_EQ(NvmeNamespace::block_device_of("/dev/null", &why), "");
  EXPECT_EQ(why, "/dev/null is no NVMe namespace (/dev/ngXnY)");
}

}  // namespace
}  // namespace halfstep::io
