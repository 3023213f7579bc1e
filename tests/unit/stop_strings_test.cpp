#include "engine/stop_strings.h"

#include <gtest/gtest.h>

#include "tessera/error.h"

namespace tessera {
namespace {

/// What is given out of `text` when it comes in pieces of `size` bytes.
std::string given(std::vector<std::string> strings, const std::string& text, std::size_t size,
                  bool& stopped) {
  StopStrings stop(std::move(strings));
  std::string out;
  for (std::size_t at = 0; at < text.size(); at += size) {
    out += stop.push(text.substr(at, size));
    if (stop.stopped()) break;
  }
  stopped = stop.stopped();
  return out + stop.finish();
}

TEST(StopStrings, EndTheTextBeforeTheFirst) {
  for (std::size_t size = 1; size < 12; ++size) {
    bool stopped = false;
    EXPECT_EQ(given({"end"}, "the enemy ended", size, stopped), "the enemy ");
    EXPECT_TRUE(stopped);
    EXPECT_EQ(given({"xyz", "aab"}, "aaaaabxyz", size, stopped), "aaa");
    EXPECT_TRUE(stopped);
    EXPECT_EQ(given({"abcd", "bc"}, "xabce", size, stopped), "xa");
    EXPECT_TRUE(stopped);
    EXPECT_EQ(given({"ending"}, "no end in", size, stopped), "no end in");
    EXPECT_FALSE(stopped);
    EXPECT_EQ(given({}, "anything", size, stopped), "anything");
    EXPECT_FALSE(stopped);
  }
}

TEST(StopStrings, HoldBackOnlyWhatMayBecomeOne) {
  StopStrings stop({"\n\n", "<end>"});
  EXPECT_EQ(stop.push("a<e"), "a");
  EXPECT_EQ(stop.push("x"), "<ex");
  EXPECT_EQ(stop.push("y\n"), "y");
  EXPECT_EQ(stop.push("z"), "\nz");
  EXPECT_EQ(stop.push("<end>tail"), "");
  EXPECT_TRUE(stop.stopped());
  EXPECT_EQ(stop.push("more"), "");
  EXPECT_EQ(stop.finish(), "");
}

TEST(StopStrings, AreBounded) {
  EXPECT_THROW(StopStrings({""}), Error);
  EXPECT_THROW(StopStrings({std::string(1025, 'x')}), Error);
  EXPECT_THROW(StopStrings(std::vector<std::string>(65, "x")), Error);
}

}  // namespace
}  // namespace tessera
