// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/options.h"

namespace awaken::bench {
namespace {

CommandLine parse(std::vector<std::string> words) {
    std::vector<char*> pointers;
    for (std::string& word : words) {
        pointers.push_back(word.data());
    }
    return parse_command_line(pointers);
}

Options options(std::vector<std::string> words) {
    return parse(std::move(words)).options;
}

/// The text of the error that parsing ends with; "" when it does not.
std::string refusal(std::vector<std::string> words) {
    try {
        parse(std::move(words));
    } catch (const Error& error) {
        return error.what();
    }
    return "";
}

bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

/// A file that is there for the life of the object.
class TemporaryFile {
  public:
    explicit TemporaryFile(const std::string& content) {
        const int file = mkstemp(_path.data());
        EXPECT_GE(file, 0);
        EXPECT_EQ(write(file, content.data(), content.size()), static_cast<ssize_t>(content.size()));
        close(file);
    }
    ~TemporaryFile() { unlink(_path.c_str()); }
    TemporaryFile(const TemporaryFile&) = delete;
    TemporaryFile& operator=(const TemporaryFile&) = delete;

    [[nodiscard]] const std::string& path() const { return _path; }

  private:
    std::string _path = testing::TempDir() + "bench_options_XXXXXX";
};

TEST(Options, NothingButANameMeansDefaults) {
    const CommandLine line = parse({"osu_latency"});
    EXPECT_EQ(line.request, Request::measure);
    EXPECT_STREQ(line.test->name, "latency");
    EXPECT_FALSE(line.options.maximum_size);
    EXPECT_TRUE(line.options.validate);
    EXPECT_FALSE(line.options.validation_column);
    EXPECT_TRUE(line.options.notes.empty());
    EXPECT_FALSE(line.options.adaptive);
}

TEST(Options, Requests) {
    EXPECT_EQ(parse({"--list"}).request, Request::list);
    EXPECT_EQ(parse({"--help"}).request, Request::help);
    EXPECT_EQ(parse({"--help"}).test, nullptr);
    EXPECT_EQ(parse({"-v"}).request, Request::version);
    EXPECT_EQ(parse({"-V"}).request, Request::version);
    EXPECT_FALSE(parse({"--list"}).as_json);
    EXPECT_TRUE(parse({"--list", "--json"}).as_json);
    EXPECT_TRUE(parse({"--help", "--json"}).as_json);
    EXPECT_EQ(parse({"bw", "-h"}).request, Request::help);
    EXPECT_STREQ(parse({"bw", "--help"}).test->name, "bw");
    EXPECT_EQ(parse({"bw", "-v", "-d", "cuda"}).request, Request::version);
    EXPECT_EQ(parse({"bw", "-v", "-d", "cuda"}).options.accelerator, Accelerator::cuda);
}

TEST(Options, MessageSizes) {
    const auto range = [](const char* text) {
        const Options o = options({"latency", "-m", text});
        return std::pair{o.minimum_size.value_or(0), o.maximum_size.value_or(0)};
    };
    EXPECT_EQ(range("128"), std::pair(std::size_t{0}, std::size_t{128}));
    EXPECT_EQ(range("2:128"), std::pair(std::size_t{2}, std::size_t{128}));
    EXPECT_EQ(range("2:"), std::pair(std::size_t{2}, std::size_t{0}));
    EXPECT_EQ(range(":128"), std::pair(std::size_t{0}, std::size_t{128}));
    EXPECT_EQ(range("1K:4M"), std::pair(std::size_t{1024}, std::size_t{4} << 20));
    EXPECT_EQ(range("8G:8G"), std::pair(std::size_t{8} << 30, std::size_t{8} << 30));
    for (const char* wrong : {"", ":", "0", "-1", "1:2:3", "x", "4:2", "8M:", "0:4", "1T"}) {
        EXPECT_TRUE(contains(refusal({"latency", "-m", wrong}), "-m")) << wrong;
    }
}

/// "message 8 of 64", ...
std::vector<std::string> figures(std::vector<std::string> words) {
    words.insert(words.begin(), "first");
    const CommandLine line = parse(std::move(words));
    std::vector<std::string> texts;
    for (const FirstFigure& figure : first_figures(line.options, *line.test)) {
        texts.push_back(std::string(to_string(figure.operation)) + " " + std::to_string(figure.size) + " of " +
                        std::to_string(figure.allocation));
    }
    return texts;
}

TEST(Options, FirstMessagesAreTheBeginningOfAllocations) {
    using Texts = std::vector<std::string>;
    EXPECT_EQ(figures({}).size(), 9U);
    EXPECT_EQ(figures({"--operation", "message"}),
              (Texts{"message 163840 of 163840", "message 163840 of 838860800", "message 838860800 of 838860800"}));
    EXPECT_EQ(figures({"-m", "8:8", "--allocation", "64,8,64", "--operation", "allreduce,message"}),
              (Texts{"allreduce 8 of 64", "allreduce 8 of 8", "message 8 of 64", "message 8 of 8"}));
    EXPECT_EQ(figures({"-m", "8:64", "--allocation", "64", "--step-factor", "4", "--operation", "exchange"}),
              (Texts{"exchange 8 of 64", "exchange 32 of 64"}));
    // Less than an MPI_INT.
    EXPECT_EQ(figures({"-m", "2:2", "--operation", "message,allreduce"}), (Texts{"message 2 of 2"}));
    EXPECT_TRUE(contains(refusal({"first", "--allocation", "8"}), "no allocation holds a message of 163840 bytes"));
    EXPECT_TRUE(contains(refusal({"first", "-m", "8:8", "--allocation", "8,4"}), "fits into an allocation of 4 bytes"));
    EXPECT_TRUE(contains(refusal({"first", "-m", "2:2", "--operation", "allreduce"}), "holds an MPI_INT"));
    EXPECT_TRUE(contains(refusal({"first", "--operation", "bcast"}), "use message, exchange or allreduce"));
    EXPECT_TRUE(contains(refusal({"latency", "--allocation", "8"}), "latency takes no --allocation"));
    EXPECT_TRUE(contains(refusal({"first", "--mode", "queued"}), "first takes no --mode"));
}

TEST(Options, TheKernelsOfHaloNeedDeviceMemory) {
    EXPECT_EQ(options({"halo", "D", "A"}).kernels, 1);
    EXPECT_EQ(options({"halo", "-d", "rocm", "--kernels", "5"}).kernels, 5);
    EXPECT_TRUE(options({"halo", "--buffers", "D,A,D"}).validate);
    const std::vector<std::vector<std::string>> refused = {
        {"halo"}, {"halo", "D", "H"}, {"halo", "--buffers", "D,D,P"}, {"halo", "-d", "managed"}};
    for (const std::vector<std::string>& words : refused) {
        EXPECT_TRUE(contains(refusal(words), "the kernels of halo write device memory"));
    }
    EXPECT_TRUE(contains(refusal({"latency", "--kernels", "2"}), "latency takes no --kernels"));
}

TEST(Options, FirstHasAContenderWithoutCompare) {
    EXPECT_EQ(options({"first"}).contenders.front().name, "awaken");
    EXPECT_EQ(options({"first", "--native"}).contenders.front().name, "native");
    EXPECT_EQ(options({"first", "--compare", "staged"}).contenders.front().name, "staged");
    EXPECT_FALSE(options({"first"}).adaptive);
}

TEST(Options, SpellingsOfOmb) {
    const Options o = options({"iallreduce", "-i100", "--warmup=7", "-f",     "-M",      "1G",   "-d", "ROCM",
                               "-t",         "12",    "-a",         "64",     "-r",      "both", "-u", "3",
                               "-c",         "-T",    "mpi_float",  "--type", "mpi_int", "-I",   "-l", "-z99,50"});
    EXPECT_EQ(o.iterations, 100U);
    EXPECT_EQ(o.warmup, 7U);
    EXPECT_TRUE(o.full);
    EXPECT_EQ(o.memory_limit, std::size_t{1} << 30);
    EXPECT_EQ(o.accelerator, Accelerator::rocm);
    EXPECT_EQ(o.test_calls, "12");
    EXPECT_EQ(o.array_size, 64);
    EXPECT_TRUE(o.compute_on_cpu && o.compute_on_gpu);
    EXPECT_EQ(o.validation_warmup, 3);
    EXPECT_TRUE(o.validation_column);
    EXPECT_EQ(o.types, (std::vector<ElementType>{ElementType::float_, ElementType::int_}));
    EXPECT_TRUE(o.session && o.in_place);
    EXPECT_EQ(o.percentiles, (std::vector<int>{99, 50}));
    EXPECT_TRUE(o.notes.empty());

    const Options pairs = options({"mbw_mr", "-p", "2", "-R", "0", "-W32", "-b", "multiple"});
    EXPECT_EQ(pairs.pairs, 2);
    EXPECT_FALSE(pairs.print_rate);
    EXPECT_EQ(pairs.window_size, 32);
    EXPECT_TRUE(pairs.multiple_buffers);
    EXPECT_TRUE(options({"mbw_mr", "-V"}).vary_window);
    EXPECT_EQ(options({"bw", "-z"}).percentiles, (std::vector<int>{50, 90, 99}));
    EXPECT_EQ(options({"reduce", "-k", "fixed:3"}).root, 3);
    EXPECT_TRUE(options({"reduce", "-k", "rotate"}).rotate_root);
}

// Each letter that a test's family takes is accepted with a sensible argument, and each other one refused by name.
TEST(Options, EveryTestTakesItsLettersAndNoOthers) {
    const TemporaryFile blocks("2, 10\n");
    const std::vector<std::pair<char, std::string>> arguments = {
        {'m', "4:8"},      {'i', "5"},      {'x', "1"},
        {'f', ""},         {'W', "8"},      {'V', ""},
        {'R', "1"},        {'p', "1"},      {'t', "2"},
        {'M', "4M"},       {'a', "8"},      {'d', "cuda"},
        {'r', "cpu"},      {'c', ""},       {'u', "1"},
        {'b', "single"},   {'G', "tty"},    {'P', "A:b"},
        {'N', "cart:1:1"}, {'T', "all"},    {'I', ""},
        {'l', ""},         {'z', ""},       {'k', "rotate"},
        {'s', "flush"},    {'w', "create"}, {'D', "indx:" + blocks.path()}};
    for (const TestInfo& test : catalogue()) {
        for (const auto& [letter, argument] : arguments) {
            std::vector<std::string> words = {test.name, std::string("-") + letter};
            if (test.family == Family::halo) {
                words.insert(words.begin() + 1, {"D", "D"});  // not host buffers
            }
            const bool both_ways = test.family == Family::one_sided_bidirectional_bandwidth;
            if (!argument.empty()) {
                words.push_back(letter == 's' && both_ways ? "fence" : argument);
            }
            const std::string error = refusal(words);
            if (std::strchr(test.options, letter) != nullptr) {
                EXPECT_EQ(error, "") << test.name;
            } else {
                EXPECT_TRUE(contains(error, std::string(test.name) + " takes no -" + letter))
                    << test.name << ": " << error;
            }
        }
    }
}

TEST(Options, SidesComeBeforeOrAfterOptions) {
    for (const std::vector<std::string>& words :
         {std::vector<std::string>{"latency", "-i", "5", "D", "MH"}, {"latency", "D", "MH", "-i", "5"}}) {
        const Options o = options(words);
        ASSERT_EQ(o.sides.size(), 2U);
        EXPECT_EQ(o.sides[0].kind, BufferKind::device);
        EXPECT_EQ(o.sides[1].kind, BufferKind::managed);
        EXPECT_FALSE(o.sides[1].managed_on_device);
        EXPECT_EQ(o.iterations, 5U);
    }
    EXPECT_TRUE(options({"latency", "MD", "H"}).sides[0].managed_on_device);
    EXPECT_EQ(options({"latency", "P", "R"}).sides[1].kind, BufferKind::registered);
    EXPECT_EQ(options({"latency", "A", "A"}).sides[1].kind, BufferKind::pool);
    EXPECT_EQ(options({"latency", "M", "H"}).notes.size(), 1U);
    EXPECT_TRUE(contains(refusal({"latency", "D"}), "only one kind of buffer is given, D, and there are two sides"));
    EXPECT_TRUE(contains(refusal({"latency", "D"}), "SRC DST, such as D D"));
    EXPECT_TRUE(contains(refusal({"latency", "D", "X"}), "'X' is not a kind of buffer"));
    EXPECT_TRUE(contains(refusal({"latency", "D", "D", "D"}), "SRC DST"));
    EXPECT_TRUE(contains(refusal({"barrier", "D", "D"}), "takes no SRC and DST"));
}

TEST(Options, BuffersOfRanks) {
    const auto kinds = [](std::vector<std::string> words, int rank, int ranks) {
        const CommandLine line = parse(std::move(words));
        const RankBuffers buffers = buffers_of_rank(line.options, *line.test, rank, ranks);
        return std::pair{buffers.send.kind, buffers.receive.kind};
    };
    using enum BufferKind;
    EXPECT_EQ(kinds({"latency", "D", "H"}, 0, 2), std::pair(device, device));
    EXPECT_EQ(kinds({"latency", "D", "H"}, 1, 2), std::pair(host, host));
    EXPECT_EQ(kinds({"mbw_mr", "D", "H"}, 1, 4), std::pair(device, device));
    EXPECT_EQ(kinds({"mbw_mr", "D", "H"}, 2, 4), std::pair(host, host));
    // Where OMB silently measures host memory.
    EXPECT_EQ(kinds({"allreduce", "D", "D"}, 3, 4), std::pair(device, device));
    EXPECT_EQ(kinds({"allreduce", "D", "P"}, 3, 4), std::pair(device, pinned));
    EXPECT_EQ(kinds({"allreduce", "-d", "cuda"}, 0, 4), std::pair(device, device));
    EXPECT_EQ(kinds({"latency", "-d", "cuda"}, 1, 2), std::pair(device, device));
    EXPECT_EQ(kinds({"latency", "-d", "cuda", "H", "H"}, 1, 2), std::pair(host, host));
    EXPECT_EQ(kinds({"allreduce", "-d", "managed"}, 0, 4), std::pair(managed, managed));
    EXPECT_EQ(kinds({"allreduce", "--buffers", "D,H,P"}, 4, 6), std::pair(host, host));
    EXPECT_EQ(kinds({"allreduce"}, 0, 4), std::pair(host, host));

    EXPECT_FALSE(needs_gpu(options({"latency", "H", "H"})));
    EXPECT_FALSE(needs_gpu(options({"latency", "-d", "cuda", "H", "H"})));
    EXPECT_TRUE(needs_gpu(options({"latency", "H", "P"})));
    EXPECT_TRUE(needs_gpu(options({"allreduce", "-d", "rocm"})));
    EXPECT_TRUE(needs_gpu(options({"allreduce", "--buffers", "H,D"})));
    EXPECT_TRUE(options({"bw", "MD", "H"}).multiple_buffers) << "managed buffers migrate: one a message, as in OMB";
    EXPECT_FALSE(options({"latency", "MD", "H"}).multiple_buffers);
}

TEST(Options, RanksWithHostBuffersNeedNoGpu) {
    const auto needing = [](std::vector<std::string> words, int ranks) {
        const CommandLine line = parse(std::move(words));
        std::string text;
        for (int rank = 0; rank < ranks; ++rank) {
            text += rank_needs_gpu(line.options, *line.test, rank, ranks) ? '1' : '0';
        }
        return text;
    };
    EXPECT_EQ(needing({"latency", "H", "D"}, 2), "01");
    EXPECT_EQ(needing({"latency", "P", "H"}, 2), "10");
    EXPECT_EQ(needing({"mbw_mr", "D", "H"}, 4), "1100");
    EXPECT_EQ(needing({"allreduce", "H", "D"}, 2), "11");
    EXPECT_EQ(needing({"allreduce", "--buffers", "D,H,H"}, 4), "1001");
    EXPECT_EQ(needing({"iallreduce", "-r", "gpu", "--buffers", "D,H"}, 2), "11");
    EXPECT_EQ(needing({"latency", "-d", "cuda", "H", "H"}, 2), "00");
}

TEST(Options, TypesSizesAndRepetitions) {
    constexpr ElementType kChar = ElementType::char_;
    constexpr ElementType kInt = ElementType::int_;
    const CommandLine allreduce = parse({"allreduce", "-m", "4:64", "-i", "7"});
    EXPECT_EQ(types_to_measure(allreduce.options, *allreduce.test), std::vector{ElementType::int_});
    EXPECT_EQ(sizes_to_measure(allreduce.options, *allreduce.test, kInt), (std::vector<std::size_t>{4, 8, 16, 32, 64}));
    EXPECT_EQ(repetitions_at(allreduce.options, *allreduce.test, 1 << 20).iterations, 7U);
    EXPECT_EQ(repetitions_at(allreduce.options, *allreduce.test, 8192).warmup, 100U);
    EXPECT_EQ(repetitions_at(allreduce.options, *allreduce.test, 8193).warmup, 10U);
    const CommandLine old = parse({"allreduce", "--omb-version", "7.0"});
    EXPECT_EQ(types_to_measure(old.options, *old.test), std::vector{ElementType::float_});
    const CommandLine latency = parse({"latency", "--step-factor", "4", "-m", "3:200"});
    EXPECT_EQ(types_to_measure(latency.options, *latency.test), std::vector{ElementType::char_});
    EXPECT_EQ(sizes_to_measure(latency.options, *latency.test, kChar), (std::vector<std::size_t>{3, 12, 48, 192}));
    EXPECT_EQ(sizes_to_measure({}, *find_test("barrier"), kChar), std::vector<std::size_t>{0});
    const CommandLine huge = parse({"latency", "-m", "8G:9223372036854775808"});
    EXPECT_EQ(sizes_to_measure(huge.options, *huge.test, kChar).size(), 31U) << "must end where sizes overflow";
}

TEST(Options, SizesBelowAnElementAreNoMeasurement) {
    EXPECT_TRUE(contains(refusal({"allreduce", "-m", "1:2"}), "holds an MPI_INT of 4 bytes: give a larger one"));
    EXPECT_TRUE(contains(refusal({"latency", "-m", "3:5", "-T", "mpi_int,mpi_float"}), "-m leaves no size"));
    EXPECT_EQ(refusal({"allreduce", "-m", "1:4"}), "");
    EXPECT_EQ(refusal({"latency", "-m", "1:2"}), "");
    const Options some = options({"latency", "-m", "1:2", "-T", "all"});
    ASSERT_EQ(some.notes.size(), 2U);
    EXPECT_TRUE(contains(some.notes.front(), "no size of -m holds an MPI_INT of 4 bytes"));
}

TEST(Options, OneSided) {
    const CommandLine put = parse({"put_latency"});
    EXPECT_EQ(window_form_of(put.options, *put.test), WindowForm::allocate);
    EXPECT_EQ(synchronisation_of(put.options, *put.test), Synchronisation::flush);
    EXPECT_EQ(types_to_measure(put.options, *put.test), std::vector{ElementType::char_});
    const CommandLine both_ways = parse({"put_bibw"});
    EXPECT_EQ(synchronisation_of(both_ways.options, *both_ways.test), Synchronisation::pscw);
    EXPECT_TRUE(contains(refusal({"put_bibw", "-s", "lock"}), "put_bibw takes no -s lock: use pscw or fence"));
    const CommandLine chosen = parse({"get_bw", "-s", "FENCE", "-w", "dynamic", "M", "D"});
    EXPECT_EQ(synchronisation_of(chosen.options, *chosen.test), Synchronisation::fence);
    EXPECT_EQ(window_form_of(chosen.options, *chosen.test), WindowForm::dynamic);
    // OMB's program leaves both as they are.
    const CommandLine fetching = parse({"get_acc_latency"});
    EXPECT_EQ(window_form_of(fetching.options, *fetching.test), WindowForm::create);
    EXPECT_EQ(synchronisation_of(fetching.options, *fetching.test), Synchronisation::lock);
    EXPECT_TRUE(contains(help_text(find_test("put_bibw")), "(default pscw)"));
    EXPECT_TRUE(contains(help_text(find_test("get_acc_latency")), "(default create)"));
    EXPECT_TRUE(chosen.options.notes.empty()) << "M is not deprecated in OMB's one-sided tests";
    EXPECT_FALSE(chosen.options.multiple_buffers);
    EXPECT_EQ(buffers_of_rank(chosen.options, *chosen.test, 1).send.kind, BufferKind::device);
    EXPECT_TRUE(contains(refusal({"put_latency", "-s", "barrier"}), "pscw, fence, lock"));
    EXPECT_TRUE(contains(refusal({"put_latency", "-w", "shared"}), "create, allocate, dynamic"));
    EXPECT_TRUE(contains(refusal({"latency", "-s", "lock"}), "it is for one-sided tests"));
}

TEST(Options, AtomicOperationsAreOnOneElement) {
    const CommandLine swap = parse({"cas_latency", "-m", "64:128", "-T", "all"});
    EXPECT_EQ(types_to_measure(swap.options, *swap.test), (std::vector{ElementType::char_, ElementType::int_}));
    EXPECT_EQ(sizes_to_measure(swap.options, *swap.test, ElementType::int_), std::vector<std::size_t>{4});
    ASSERT_EQ(swap.options.notes.size(), 2U);
    EXPECT_TRUE(contains(swap.options.notes[0], "-m is accepted without effect"));
    EXPECT_TRUE(contains(swap.options.notes[1], "no floating-point numbers"));
    EXPECT_TRUE(contains(refusal({"cas_latency", "-T", "mpi_double"}), "use -T mpi_char or -T mpi_int"));
    const CommandLine add = parse({"fop_latency"});
    EXPECT_EQ(types_to_measure(add.options, *add.test), std::vector{ElementType::int_});
    EXPECT_TRUE(contains(refusal({"fop_latency", "--step-factor", "4"}), "takes no --step-factor"));
}

TEST(Options, ThreadsAndProcesses) {
    const auto parallelism = [](std::vector<std::string> words) {
        const CommandLine line = parse(std::move(words));
        const Parallelism p = parallelism_of(line.options, *line.test);
        return std::pair{p.senders, p.receivers};
    };
    EXPECT_EQ(parallelism({"latency_mt"}), std::pair(1, 2));
    EXPECT_EQ(parallelism({"latency_mt", "-t", "4"}), std::pair(1, 4));
    EXPECT_EQ(parallelism({"latency_mt", "-t", "4:6"}), std::pair(4, 6));
    EXPECT_EQ(parallelism({"latency_mp"}), std::pair(2, 2));
    EXPECT_TRUE(contains(refusal({"latency_mt", "-t", "0"}), "-t"));
    EXPECT_TRUE(contains(refusal({"latency_mt", "-t", "2:"}), "-t"));
    EXPECT_TRUE(contains(refusal({"latency_mt", "-t", "129"}), "at most 128"));
}

TEST(Options, ValidationAndItsLog) {
    const std::string fresh = testing::TempDir() + "no_such_directory_yet";
    EXPECT_EQ(options({"bw", "-clog:" + fresh}).validation_log, fresh);
    EXPECT_TRUE(options({"bw", "-c", "D", "D"}).validation_column) << "D is no argument of -c";
    EXPECT_TRUE(contains(refusal({"bw", "-clog:" + testing::TempDir()}), "exists already"));
    EXPECT_TRUE(contains(refusal({"bw", "-cfoo"}), "-clog:DIRECTORY"));
    EXPECT_TRUE(contains(refusal({"bw", "-c", "-D", "cont"}), "-c and -D"));
    EXPECT_TRUE(contains(refusal({"bw", "-D", "cont", "-c"}), "-c and -D"));
    EXPECT_TRUE(contains(refusal({"bw", "-c", "--no-check"}), "--no-check contradicts -c"));
    EXPECT_TRUE(contains(refusal({"bw", "--self-test", "--no-check"}), "--self-test"));
    EXPECT_TRUE(contains(refusal({"bw", "-u", "11"}), "at most 10"));
}

TEST(Options, DerivedTypes) {
    const TemporaryFile blocks("#This is a comment\n2, 10\n\n 20 ,3\n");
    const Options indexed = options({"bw", "-D", "indx:" + blocks.path()});
    ASSERT_TRUE(indexed.derived_type);
    ASSERT_EQ(indexed.derived_type->blocks.size(), 2U);
    EXPECT_EQ(indexed.derived_type->blocks[0].displacement, 2);
    EXPECT_EQ(indexed.derived_type->blocks[0].length, 10U);
    EXPECT_EQ(indexed.derived_type->blocks[1].displacement, 20);
    EXPECT_EQ(indexed.derived_type->blocks[1].length, 3U);
    const Options vector = options({"bw", "-D", "vect:8:4"});
    EXPECT_EQ(vector.derived_type->stride, 8U);
    EXPECT_EQ(vector.derived_type->block_length, 4U);
    EXPECT_EQ(options({"bw", "-D", "cont"}).derived_type->form, DerivedType::Form::contiguous);
    for (const char* wrong : {"", "vect", "vect:8", "vect:4:8", "vect:4:0", "indx:", "indx:/no/such/file", "struct"}) {
        EXPECT_TRUE(contains(refusal({"bw", "-D", wrong}), "-D")) << wrong;
    }
    const TemporaryFile broken("2, 10\nten\n");
    EXPECT_TRUE(contains(refusal({"bw", "-D", "indx:" + broken.path()}), "line 2"));
    EXPECT_TRUE(contains(refusal({"bw", "-D", "indx:/dev/zero"}), "it is a device"));
    const TemporaryFile control("2, 10\n\x1B[2J" + std::string(5000, 'x') + "\n");
    const std::string told = refusal({"bw", "-D", "indx:" + control.path()});
    EXPECT_TRUE(contains(told, "\\x1B[2Jxxx")) << told;
    EXPECT_LT(told.size(), 500U);
}

TEST(Options, Neighborhoods) {
    const Options cartesian = options({"neighbor_alltoall", "-N", "cart:2:3"});
    EXPECT_EQ(cartesian.neighborhood.dimensions, 2);
    EXPECT_EQ(cartesian.neighborhood.radius, 3);
    const TemporaryFile edges("0, 1\n");
    const Options graph = options({"neighbor_alltoall", "-N", "graph:" + edges.path()});
    EXPECT_FALSE(graph.neighborhood.cartesian);
    EXPECT_EQ(graph.neighborhood.graph_file, edges.path());
    for (const char* wrong :
         {"cart", "cart:1", "cart:0:1", "cart:1:0", "graph", "graph:/no/such/file", "graph:/dev/zero"}) {
        EXPECT_TRUE(contains(refusal({"neighbor_alltoall", "-N", wrong}), "-N")) << wrong;
    }
}

TEST(Options, Comparisons) {
    const Options o = options({"latency", "--compare", "native,awaken,cma=awaken+MPICH_SMP_SINGLE_COPY_MODE=CMA+X=a=b",
                               "--mode", "waited,queued", "--max-time", "0.5", "--precision", "2%"});
    ASSERT_EQ(o.contenders.size(), 3U);
    EXPECT_EQ(o.contenders[0].name, "native");
    EXPECT_EQ(o.contenders[0].kind, ContenderChoice::Kind::native);
    EXPECT_EQ(o.contenders[2].name, "cma");
    EXPECT_EQ(o.contenders[2].kind, ContenderChoice::Kind::awaken);
    EXPECT_EQ(o.contenders[2].environment, (std::vector<std::string>{"MPICH_SMP_SINGLE_COPY_MODE=CMA", "X=a=b"}));
    EXPECT_EQ(o.modes, (std::vector<Mode>{Mode::waited, Mode::queued}));
    EXPECT_TRUE(o.adaptive);
    EXPECT_DOUBLE_EQ(o.precision, 0.02);
    EXPECT_DOUBLE_EQ(o.time_limit_s, 0.5);

    // Values may hold the separators.
    const Options escaped = options(
        {"latency", "--compare", "ucx=native+UCX_TLS=self\\,sm+FLAGS=a\\+b\\\\c,awaken", "--launcher", "mpiexec"});
    ASSERT_EQ(escaped.contenders.size(), 2U);
    EXPECT_EQ(escaped.contenders[0].environment, (std::vector<std::string>{"UCX_TLS=self,sm", "FLAGS=a+b\\c"}));

    // Launches of a comparison are given a second, plain one.
    const Options again = options({"latency", "--compare", "a=awaken+X=1,native", "--native", "--compare", "b=native"});
    ASSERT_EQ(again.contenders.size(), 1U);
    EXPECT_EQ(again.contenders[0].name, "b");
    EXPECT_EQ(options({"latency", "--compare", "native", "--launcher", "mpiexec -n 2", "--launcher", "native=srun"})
                  .launchers.size(),
              2U);
    // As awaken doctor and awaken topo spell it, too.
    const Options other = options({"latency", "--compare", "native", "--mpiexec", "mpiexec", "--ranks", "2"});
    EXPECT_EQ(other.launchers, std::vector<std::string>{"mpiexec"});
    EXPECT_EQ(other.launched_ranks, 2);
    EXPECT_TRUE(contains(refusal({"latency", "--ranks", "2"}), "--compare"));
    EXPECT_TRUE(contains(refusal({"latency", "--partitions", "2"}), "partitioned_latency"));
    EXPECT_TRUE(contains(refusal({"partitioned_latency", "--partitions", "0"}), "--partitions"));
    EXPECT_EQ(options({"partitioned_latency", "--partitions", "3"}).partitions, 3);

    EXPECT_TRUE(contains(refusal({"latency", "--compare", "native,native"}), "two contenders"));
    EXPECT_TRUE(contains(refusal({"latency", "--compare", "awaken+X=1"}), "LABEL=awaken+X=1"));
    EXPECT_TRUE(contains(refusal({"latency", "--compare", "a=awaken+X"}), "environment variable"));
    EXPECT_TRUE(contains(refusal({"latency", "--compare", "nccl"}),
                         "native, awaken, staged, enqueue, graph, xccl, xccl_graph or raw"));
    EXPECT_TRUE(contains(refusal({"latency", "--mode", "queued"}), "--compare"));
    EXPECT_TRUE(contains(refusal({"latency", "--launcher", "mpiexec"}), "--compare"));
    EXPECT_TRUE(contains(refusal({"mbw_mr", "-V", "--compare", "native"}), "-V"));
    EXPECT_TRUE(contains(refusal({"latency", "--native", "--compare", "awaken"}), "--native"));
}

TEST(Options, IterationsAreFixedOrChosen) {
    EXPECT_TRUE(options({"latency", "--adaptive"}).adaptive);
    EXPECT_TRUE(options({"latency", "--precision", "0.05"}).adaptive);
    EXPECT_FALSE(options({"latency", "--compare", "native,awaken", "-i", "10"}).adaptive);
    EXPECT_TRUE(contains(refusal({"latency", "--adaptive", "-i", "10"}), "--adaptive"));
    EXPECT_TRUE(contains(refusal({"latency", "--max-time", "1", "-i", "10"}), "-i"));
    for (const char* wrong : {"0", "1", "200%", "x", ""}) {
        EXPECT_TRUE(contains(refusal({"latency", "--precision", wrong}), "--precision")) << wrong;
    }
}

TEST(Options, WhatHasNoEffectIsSaid) {
    const auto notes = [](std::vector<std::string> words) {
        std::string text;
        for (const std::string& note : options(std::move(words)).notes) {
            text += note + "\n";
        }
        return text;
    };
    EXPECT_TRUE(contains(notes({"latency", "-P", "PAPI_TOT_CYC:out"}), "-P is accepted without effect"));
    EXPECT_TRUE(contains(notes({"latency", "-G", "tty,png"}), "-G is accepted without effect"));
    EXPECT_TRUE(contains(notes({"bw", "-t", "3"}), "-t is accepted without effect"));
    EXPECT_TRUE(contains(notes({"allreduce", "-r", "gpu"}), "-r is accepted without effect"));
    EXPECT_TRUE(contains(notes({"iallreduce", "-a", "4"}), "-a is accepted without effect"));
    EXPECT_EQ(notes({"iallreduce", "-a", "4", "-r", "gpu"}), "");
    EXPECT_TRUE(contains(notes({"mbw_mr", "-V", "-W", "3"}), "-W is accepted without effect"));
    EXPECT_TRUE(contains(notes({"bw_fan_in", "-p", "3", "-V", "-R", "0"}), "-V is accepted without effect"));
    EXPECT_TRUE(contains(notes({"barrier", "-m", "4"}), "-m is accepted without effect"));
    EXPECT_TRUE(contains(notes({"allreduce", "-M", "1000"}), "1048576"));
}

TEST(Options, WrongUseSaysWhatToDo) {
    EXPECT_TRUE(contains(refusal({}), "--list"));
    EXPECT_TRUE(contains(refusal({"latncy"}), "did you mean latency?"));
    EXPECT_TRUE(contains(refusal({"whatever_this_is"}), "--list"));
    EXPECT_TRUE(contains(refusal({"-i", "5"}), "name first"));
    EXPECT_TRUE(contains(refusal({"latency", "--nonsense"}), "'--nonsense'"));
    EXPECT_TRUE(contains(refusal({"latency", "-y"}), "'-y'"));
    EXPECT_TRUE(contains(refusal({"latency", "-i"}), "-i lacks its argument"));
    EXPECT_TRUE(contains(refusal({"latency", "--json"}), "--json lacks its argument"));
    EXPECT_TRUE(contains(refusal({"latency", "--json", "--native"}), "--json lacks its argument: --native after it"));
    EXPECT_TRUE(contains(refusal({"latency", "-i", "many"}), "is not a number"));
    EXPECT_TRUE(contains(refusal({"latency", "-i", "0"}), "at least 1"));
    EXPECT_TRUE(contains(refusal({"latency", "-i", "5x"}), "-i '5x' is not a whole number"));
    EXPECT_TRUE(contains(refusal({"latency", "-i", "1e3"}), "-i '1e3' is not a whole number"));
    EXPECT_TRUE(contains(refusal({"latency", "-i", "99999999999999999999"}), "is out of range"));
    EXPECT_TRUE(contains(refusal({"allreduce", "-i", "100000000000000"}), "at most 2147483647"));
    EXPECT_TRUE(contains(refusal({"allreduce", "-x", "100000000000000"}), "at most 2147483647"));
    EXPECT_TRUE(contains(refusal({"bw", "-W", "2147483647"}), "at most 1048576"));
    EXPECT_TRUE(contains(refusal({"latency", "-f"}), "it is for collectives"));
    EXPECT_TRUE(contains(refusal({"latency", "-d", "fpga"}), "cuda, rocm, managed or openacc"));
    EXPECT_TRUE(contains(refusal({"latency", "-T", "mpi_complex"}), "-T 'mpi_complex'"));
    EXPECT_TRUE(contains(refusal({"latency", "-z0"}), "-z '0'"));
    EXPECT_TRUE(contains(refusal({"latency", "-z1,2,3,4,5,6"}), "at most 5"));
    EXPECT_TRUE(contains(refusal({"latency", "-z", "50,99"}), "'50,99' stands apart from -z: attach it: -z50,99"));
    EXPECT_TRUE(contains(refusal({"latency", "-c", "log:here", "D", "D"}), "attach it: -clog:here"));
    EXPECT_TRUE(contains(refusal({"latency", "50,99"}), "is not a kind of buffer"));
    EXPECT_TRUE(contains(refusal({"reduce", "-k", "fixed"}), "fixed:RANK"));
    EXPECT_TRUE(contains(refusal({"latency", "--omb-version", "6"}), "7.5 or 7.0"));
    EXPECT_TRUE(contains(refusal({"latency", "--gpu-map", "0,x"}), "--gpu-map 'x'"));
    EXPECT_TRUE(contains(refusal({"hello", "--compare", "native"}), "hello takes no"));
}

TEST(Help, OfATestListsItsOptionsWithTheirTrueDefaults) {
    const std::string latency = help_text(find_test("latency"));
    EXPECT_TRUE(contains(latency, "default 10000, above 8192 bytes 1000"));
    EXPECT_TRUE(contains(latency, "default 1:4194304"));
    EXPECT_TRUE(contains(latency, "exactly 2 ranks"));
    EXPECT_FALSE(contains(latency, "--full"));
    EXPECT_FALSE(contains(latency, "--window-size"));
    const std::string allreduce = help_text(find_test("allreduce"));
    EXPECT_TRUE(contains(allreduce, "default MPI_INT"));
    EXPECT_TRUE(contains(allreduce, "--full"));
    EXPECT_FALSE(contains(allreduce, "--ddt"));
    EXPECT_FALSE(contains(help_text(find_test("barrier")), "SRC DST"));
}

TEST(Help, GeneralListsAll) {
    const std::string help = help_text(nullptr);
    for (const OptionDescription& option : option_descriptions()) {
        EXPECT_TRUE(contains(help, option.spelling)) << option.spelling;
    }
}

/// Blanks and line breaks as one blank, and no backticks or escaped bars: what is left of Markdown is the text.
std::string plain(const std::string& text) {
    std::string result;
    for (const char c : text) {
        if (c == '`' || c == '\\') {
            continue;
        }
        const bool blank = c == ' ' || c == '\n';
        if (!blank || result.empty() || result.back() != ' ') {
            result += blank ? ' ' : c;
        }
    }
    return result;
}

TEST(Documentation, HoldsTheTableOfOptions) {
    std::ifstream file(AWAKEN_BENCHMARKS_PAGE);
    const std::string page = plain({std::istreambuf_iterator<char>(file), {}});
    ASSERT_FALSE(page.empty()) << AWAKEN_BENCHMARKS_PAGE;
    for (const OptionDescription& option : option_descriptions()) {
        EXPECT_TRUE(contains(page, plain("| " + option.spelling + " | " + option.meaning + " |"))) << option.spelling;
    }
}

}  // namespace
}  // namespace awaken::bench
