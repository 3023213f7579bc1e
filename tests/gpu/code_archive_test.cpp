// What the build packs of machine code comes out as it went in; a damaged binary says that it is one.

#include "backends/gpu/runtime/code_archive.h"

#include <gtest/gtest.h>

#include <thread>

#include "gpu/packed_code.h"
#include "tessera/error.h"

namespace tessera::gpu {
namespace {

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

const std::vector<PackedMember> kMembers = {{"module_0.co", "short"},
                                            {"module_1.co", std::string(512, 'x')},
                                            {"module_2.co", ""},
                                            {"module_3.co", std::string(100'000, 'y') + "end"},
                                            {"module_4.co", std::string(1024, 'z')}};

TEST(CodeArchive, GivesEachMemberWithAZeroAfterIt) {
  const std::vector<std::byte> packed = xz_of(tar_of(kMembers));
  EXPECT_LT(packed.size(), 1000u);
  const CodeArchive archive(packed);
  for (const auto& [name, bytes] : kMembers) {
    const std::span<const std::byte> member = archive.find(name);
    EXPECT_EQ(text_of(member), bytes);
    EXPECT_EQ(member.data()[member.size()], std::byte{0}) << name;
  }
}

TEST(CodeArchive, UnpacksOnceForAllThreads) {
  const std::vector<std::byte> packed = xz_of(tar_of(kMembers));
  const CodeArchive archive(packed);
  std::vector<const std::byte*> found(8);
  std::vector<std::thread> threads;
  for (const std::byte*& place : found)
    threads.emplace_back([&] { place = archive.find("module_1.co").data(); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(found, std::vector(8, archive.find("module_1.co").data()));
}

void expect_damaged(std::span<const std::byte> packed, const std::string& expected,
                    const std::string& name = "module_0.co") {
  const CodeArchive archive(packed);
  try {
    archive.find(name);
    ADD_FAILURE() << "was found";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCorruptFile);
    EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
  }
}

TEST(CodeArchive, SaysThatItIsDamaged) {
  const std::string tar = tar_of(kMembers);
  const std::vector<std::byte> packed = xz_of(tar);
  expect_damaged(packed, "module_9.co is missing", "module_9.co");
  expect_damaged(std::span(packed).first(packed.size() / 2), "xz error");
  expect_damaged({}, "xz error");
  std::vector<std::byte> changed = packed;
  changed[packed.size() / 2] ^= std::byte{0x40};
  expect_damaged(changed, "xz error");
  std::string too_long = tar;
  too_long.replace(124, 11, "77777777777");
  expect_damaged(xz_of(too_long), "at module_0.co");
  std::string no_number = tar;
  no_number[130] = '9';
  expect_damaged(xz_of(no_number), "at module_0.co");
  std::string a_link = tar;
  a_link[156] = '2';
  expect_damaged(xz_of(a_link), "at module_0.co");
  // Cut off in front of the zero after the last member.
  expect_damaged(xz_of(tar.substr(0, tar.size() - 1024)), "at module_4.co");
}

}  // namespace
}  // namespace tessera::gpu
