// SPDX-License-Identifier: Apache-2.0
#include "coll/device/selection.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "gpu/kernels/codes.h"

namespace awaken::coll {
namespace {

/// Of floating-point numbers, where numbers are reduced.
Occasion occasion(const Kind kind, const int ranks, const std::uint64_t bytes, const int nodes = 1) {
    constexpr std::uint32_t kSum = kernels::code_of(kernels::ElementType::float64, kernels::ReductionOperation::sum);
    return {kind, type_class_of(kind, kSum), ranks, nodes, bytes};
}

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
            for (const std::uint64_t bytes : {0ULL, 8ULL, 1ULL << 20, 1ULL << 40}) {
                EXPECT_NE(table.choose(occasion(static_cast<Kind>(kind), ranks, bytes)), Algorithm::staged);
            }
        }
    }
    EXPECT_EQ(table.choose(occasion(Kind::allreduce, 2, 8)), Algorithm::one_shot);
}

TEST(Selection, GivenRowsComeFirst) {
    const Selection table(
        "allreduce ranks=2-4 bytes=1K-1M : ccl; allreduce bytes=-512 : two-shot # small\n* ranks=7 : staged", "a file");
    EXPECT_EQ(table.choose(occasion(Kind::allreduce, 2, 1024)), Algorithm::ccl);
    EXPECT_EQ(table.choose(occasion(Kind::allreduce, 4, 1 << 20)), Algorithm::ccl);
    EXPECT_NE(table.choose(occasion(Kind::allreduce, 5, 1024)), Algorithm::ccl);
    EXPECT_NE(table.choose(occasion(Kind::allreduce, 2, 1023)), Algorithm::ccl);
    EXPECT_EQ(table.choose(occasion(Kind::allreduce, 2, 512)), Algorithm::two_shot);
    EXPECT_EQ(table.choose(occasion(Kind::gather, 7, 1)), Algorithm::staged);
    EXPECT_NE(table.choose(occasion(Kind::gather, 6, 1)), Algorithm::staged);
}

TEST(Selection, AlgorithmsAreForOneNodeOrForSeveral) {
    const Selection table;
    for (int kind = 0; kind < kKinds; ++kind) {
        for (const std::uint64_t bytes : {8ULL, 1ULL << 30}) {
            const Occasion wide = occasion(static_cast<Kind>(kind), 8, bytes, 2);
            EXPECT_EQ(table.choose(wide), Algorithm::ccl);
            const bool has_levels = wide.kind == Kind::allreduce || wide.kind == Kind::reduce ||
                                    (wide.kind == Kind::broadcast && bytes > 8);
            const bool in_parts = wide.kind == Kind::gather || wide.kind == Kind::scatter ||
                                  wide.kind == Kind::allgather || wide.kind == Kind::alltoall;
            EXPECT_EQ(table.choose(wide, Algorithm::ccl), has_levels ? Algorithm::hierarchical
                                                          : in_parts ? Algorithm::point_to_point
                                                                     : Algorithm::staged);
        }
    }
    // Rows that name no number of nodes are for those that their algorithm can do.
    const Selection given("* : two-shot; allreduce nodes=2-3 : hierarchical; * nodes=3 : staged", "x");
    EXPECT_EQ(given.choose(occasion(Kind::allreduce, 8, 8)), Algorithm::two_shot);
    EXPECT_EQ(given.choose(occasion(Kind::allreduce, 8, 8, 2)), Algorithm::hierarchical);
    EXPECT_EQ(given.choose(occasion(Kind::broadcast, 8, 8, 3)), Algorithm::staged);
    EXPECT_EQ(given.choose(occasion(Kind::allreduce, 8, 8, 4)), Algorithm::ccl);
}

TEST(Selection, TypesHaveClasses) {
    using kernels::ElementType;
    const auto sum = [](const ElementType type) { return kernels::code_of(type, kernels::ReductionOperation::sum); };
    EXPECT_EQ(type_class_of(Kind::allreduce, sum(ElementType::uint16)), TypeClass::integer);
    EXPECT_EQ(type_class_of(Kind::reduce, sum(ElementType::bfloat16)), TypeClass::floating);
    EXPECT_EQ(type_class_of(Kind::reduce_scatter, sum(ElementType::complex_float32)), TypeClass::complex);
    EXPECT_EQ(type_class_of(Kind::allreduce, kernels::code_of(ElementType::pair_float32_int32,
                                                              kernels::ReductionOperation::minimum_location)),
              TypeClass::pair);
    EXPECT_EQ(
        type_class_of(Kind::allreduce, kernels::code_of(ElementType::boolean, kernels::ReductionOperation::logical_or)),
        TypeClass::boolean);
    EXPECT_EQ(type_class_of(Kind::allreduce, 0), TypeClass::other);
    EXPECT_EQ(type_class_of(Kind::allgather, 0), TypeClass::nothing);

    const Selection table("* types=complex,integer : staged; allreduce types=nothing : root-only", "x");
    const auto choose = [&](const Kind kind, const ElementType type) {
        return table.choose({kind, type_class_of(kind, sum(type)), 2, 1, 8});
    };
    EXPECT_EQ(choose(Kind::allreduce, ElementType::complex_float64), Algorithm::staged);
    EXPECT_EQ(choose(Kind::reduce, ElementType::int8), Algorithm::staged);
    EXPECT_EQ(choose(Kind::allreduce, ElementType::float32), Algorithm::one_shot);
    EXPECT_EQ(choose(Kind::allgather, ElementType::int8), Algorithm::two_shot);
}

TEST(Selection, ItsTextReadsBackAsItself) {
    const Selection table(
        "broadcast ranks=3- nodes=-4 bytes=-100 : root-only; * types=pair,other nodes=2 bytes=3M- : ccl", "x");
    const Selection again(table.text(), "x");
    // The built-in rows are in it twice then; what is chosen is the same.
    ASSERT_GE(again.rows().size(), table.rows().size());
    for (std::size_t i = 0; i < table.rows().size(); ++i) {
        EXPECT_EQ(again.rows()[i], table.rows()[i]);
    }
}

TEST(Selection, EachBuiltInRowSaysWhatSetIt) {
    for (const SelectionRow& row : Selection().rows()) {
        EXPECT_FALSE(row.measured.empty());
    }
    const std::string text = Selection("reduce : two-shot", "x").text();
    EXPECT_EQ(text.substr(0, text.find('\n')), "reduce : two-shot");
    EXPECT_NE(text.find("# not measured"), std::string::npos);
}

TEST(Selection, EqualTablesHaveEqualHashes) {
    EXPECT_EQ(Selection().hash(), Selection("", "x").hash());
    EXPECT_EQ(Selection("* : ccl", "x").hash(), Selection(" * :  ccl ; ", "y").hash());
    EXPECT_NE(Selection("* : ccl", "x").hash(), Selection("* : root-only", "x").hash());
    EXPECT_NE(Selection("* bytes=8- : ccl", "x").hash(), Selection("* bytes=9- : ccl", "x").hash());
    EXPECT_NE(Selection("* nodes=2- : ccl", "x").hash(), Selection("* nodes=3- : ccl", "x").hash());
    EXPECT_NE(Selection("* types=pair : ccl", "x").hash(), Selection("* types=integer : ccl", "x").hash());
}

TEST(Selection, SaysWhatIsWrongAndWhatIsAllowed) {
    EXPECT_NE(refusal("allreduce").find("has no colon"), std::string::npos);
    EXPECT_NE(refusal("allredouce : ccl").find("\"allredouce\", which is not a collective"), std::string::npos);
    EXPECT_NE(refusal("barrier : staged").find("AWAKEN_PATH=staged"), std::string::npos);
    EXPECT_NE(refusal("allreduce : fast")
                  .find("one of root-only, one-shot, two-shot, ccl, hierarchical, point-to-point, staged"),
              std::string::npos);
    EXPECT_NE(refusal("allreduce size=3 : ccl").find("\"size=3\""), std::string::npos);
    EXPECT_NE(refusal("allreduce bytes=x : ccl").find("AWAKEN_COLLECTIVES"), std::string::npos);
    EXPECT_NE(refusal("allreduce bytes=2-1 : ccl").find("ends before it begins"), std::string::npos);
    EXPECT_NE(refusal("allreduce ranks=5-2 : ccl").find("range"), std::string::npos);
    EXPECT_NE(refusal("allreduce nodes=0-0 : ccl").find("range of nodes"), std::string::npos);
    EXPECT_NE(refusal("allreduce nodes=2- : one-shot").find("can never apply: one-shot is for one node"),
              std::string::npos);
    EXPECT_NE(refusal("allreduce nodes=1 : hierarchical").find("can never apply: hierarchical needs two nodes"),
              std::string::npos);
    EXPECT_NE(refusal("allreduce types=float : ccl").find("any of integer, floating, complex"), std::string::npos);
    EXPECT_NE(refusal("allreduce types= : ccl").find("types \"\""), std::string::npos);
    EXPECT_NE(refusal(" : ccl").find("names no collective"), std::string::npos);
    EXPECT_EQ(refusal(" ; \n # nothing"), "accepted");
}

}  // namespace
}  // namespace awaken::coll
