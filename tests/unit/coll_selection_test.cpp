#include "coll/selection.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace awaken::coll {
namespace {

std::string refusal(const std::string& text) {
    try {
        const Selection selection(text, "AWAKEN_COLLECTIVES");
    } catch (const Error& error) {
        return error.what();
    }
    return "accepted";
}

TEST(Selection, TheBuiltInTableHasAnAnswerForEverything) {
    const Selection table;
    for (int kind = 0; kind < kKinds; ++kind) {
        for (const int ranks : {1, 2, 8, 1000}) {
            for (const std::uint64_t bytes : {0ULL, 8ULL, 1ULL << 20, 1ULL << 40})
                EXPECT_NE(table.choose(static_cast<Kind>(kind), ranks, bytes), Algorithm::staged);
        }
    }
    EXPECT_EQ(table.choose(Kind::allreduce, 2, 8), Algorithm::each);
}

TEST(Selection, GivenRowsComeFirst) {
    const Selection table(
        "allreduce ranks=2-4 bytes=1K-1M : ccl; allreduce bytes=-512 : all # small\n* ranks=7 : staged", "a file");
    EXPECT_EQ(table.choose(Kind::allreduce, 2, 1024), Algorithm::ccl);
    EXPECT_EQ(table.choose(Kind::allreduce, 4, 1 << 20), Algorithm::ccl);
    EXPECT_NE(table.choose(Kind::allreduce, 5, 1024), Algorithm::ccl);
    EXPECT_NE(table.choose(Kind::allreduce, 2, 1023), Algorithm::ccl);
    EXPECT_EQ(table.choose(Kind::allreduce, 2, 512), Algorithm::all);
    EXPECT_EQ(table.choose(Kind::gather, 7, 1), Algorithm::staged);
    EXPECT_NE(table.choose(Kind::gather, 6, 1), Algorithm::staged);
}

TEST(Selection, ItsTextReadsBackAsItself) {
    const Selection table("broadcast ranks=3- bytes=-100 : one; * bytes=3M- : ccl", "x");
    const Selection again(table.text(), "x");
    // The built-in rows are in it twice then; what is chosen is the same.
    ASSERT_GE(again.rows().size(), table.rows().size());
    for (std::size_t i = 0; i < table.rows().size(); ++i)
        EXPECT_EQ(again.rows()[i], table.rows()[i]);
}

TEST(Selection, EqualTablesHaveEqualHashes) {
    EXPECT_EQ(Selection().hash(), Selection("", "x").hash());
    EXPECT_EQ(Selection("* : ccl", "x").hash(), Selection(" * :  ccl ; ", "y").hash());
    EXPECT_NE(Selection("* : ccl", "x").hash(), Selection("* : one", "x").hash());
    EXPECT_NE(Selection("* bytes=8- : ccl", "x").hash(), Selection("* bytes=9- : ccl", "x").hash());
}

TEST(Selection, SaysWhatIsWrongAndWhatIsAllowed) {
    EXPECT_NE(refusal("allreduce").find("has no colon"), std::string::npos);
    EXPECT_NE(refusal("allredouce : ccl").find("\"allredouce\", which is no collective"), std::string::npos);
    EXPECT_NE(refusal("allreduce : fast").find("one of one, each, all, ccl, staged"), std::string::npos);
    EXPECT_NE(refusal("allreduce size=3 : ccl").find("\"size=3\""), std::string::npos);
    EXPECT_NE(refusal("allreduce bytes=x : ccl").find("AWAKEN_COLLECTIVES"), std::string::npos);
    EXPECT_NE(refusal("allreduce bytes=2-1 : ccl").find("ends before it begins"), std::string::npos);
    EXPECT_NE(refusal("allreduce ranks=5-2 : ccl").find("range"), std::string::npos);
    EXPECT_NE(refusal(" : ccl").find("names no collective"), std::string::npos);
    EXPECT_EQ(refusal(" ; \n # nothing"), "accepted");
}

}  // namespace
}  // namespace awaken::coll
