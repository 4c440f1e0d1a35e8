// SPDX-License-Identifier: Apache-2.0
// Expected texts are written out from the documented formats of the OSU micro-benchmarks, not computed.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "engine/printer.h"

namespace awaken::bench {
namespace {

/// What a printer writes while `print` drives it.
std::string output(const char* name, std::vector<std::string> words, const std::function<void(Printer&)>& print) {
    words.insert(words.begin(), name);
    std::vector<char*> pointers;
    for (std::string& word : words) {
        pointers.push_back(word.data());
    }
    const CommandLine line = parse_command_line(pointers);
    char* text = nullptr;
    std::size_t size = 0;
    std::FILE* file = open_memstream(&text, &size);
    print(*make_osu_printer(file, line.options, *line.test));
    std::fclose(file);
    const std::string result(text, size);
    std::free(text);
    return result;
}

Measurement latency(std::size_t size, double average) {
    Measurement measurement;
    measurement.size = size;
    measurement.average = average;
    measurement.validated = true;
    return measurement;
}

Measurement bandwidth(std::size_t size, double value, double rate = 0) {
    Measurement measurement;
    measurement.size = size;
    measurement.bandwidth = value;
    measurement.message_rate = rate;
    measurement.validated = true;
    return measurement;
}

constexpr Accelerator kCuda = Accelerator::cuda;

TEST(OsuPrinter, Latency) {
    EXPECT_EQ(output("latency", {"D", "D"},
                     [](Printer& printer) {
                         printer.header({.accelerator = kCuda});
                         printer.row(latency(1, 4));
                         printer.row(latency(4194304, 12345.678));
                         printer.end();
                     }),
              "\n"
              "# OSU MPI-CUDA Latency Test v7.5\n"
              "# Datatype: MPI_CHAR.\n"
              "# Size       Avg Latency(us)\n"
              "1                       4.00\n"
              "4194304             12345.68\n");
}

TEST(OsuPrinter, BandwidthWithValidation) {
    EXPECT_EQ(output("bw", {"-c"},
                     [](Printer& printer) {
                         printer.header({});
                         printer.row(bandwidth(1, 0.9));
                         Measurement wrong = bandwidth(2, 1.84);
                         wrong.errors = 1;
                         printer.row(wrong);
                         printer.end();
                     }),
              "\n"
              "# OSU MPI Bandwidth Test v7.5\n"
              "# Datatype: MPI_CHAR.\n"
              "# Size      Bandwidth (MB/s)        Validation\n"
              "1                       0.90              Pass\n"
              "2                       1.84              Fail\n"
              "DATA VALIDATION ERROR: osu_bw exited with status 1 on message size 2.\n");
}

TEST(OsuPrinter, UncheckedDataDoNotPass) {
    const std::string text = output("bw", {"-c"}, [](Printer& printer) {
        Measurement unchecked = bandwidth(1, 1);
        unchecked.validated = false;
        printer.row(unchecked);
    });
    EXPECT_EQ(text, "1                       1.00         Unchecked\n");
}

TEST(OsuPrinter, BidirectionalWithPercentilesAndDerivedType) {
    EXPECT_EQ(output("bibw", {"-z5,99", "-D", "vect:8:4", "-d", "rocm"},
                     [](Printer& printer) {
                         printer.header({});
                         Measurement row = bandwidth(16, 10.5);
                         row.percentiles = {9.25, 11};
                         row.transmit_size = 8;
                         printer.row(row);
                     }),
              "\n"
              "# OSU MPI-ROCM Bi-Directional Bandwidth Test v7.5\n"
              "# Datatype: MPI_CHAR.\n"
              "# Size      Bandwidth (MB/s)  P5 Tail BW(MB/s) P99 Tail BW(MB/s)     Transmit Size\n"
              "16                     10.50              9.25             11.00                 8\n");
}

TEST(OsuPrinter, MultipleBandwidthHasNoEmptyLineAndNoAccelerator) {
    const auto print = [](Printer& printer) {
        printer.header({.pairs = 4, .window_size = 64, .accelerator = kCuda});
        printer.row(bandwidth(1, 8.36, 8361985.11));
    };
    EXPECT_EQ(output("mbw_mr", {"D", "D"}, print),
              "# OSU MPI Multiple Bandwidth / Message Rate Test v7.5\n"
              "# [ pairs: 4 ] [ window size: 64 ]\n"
              "# Datatype: MPI_CHAR.\n"
              "# Size                  MB/s        Messages/s\n"
              "1                       8.36        8361985.11\n");
    EXPECT_EQ(output("mbw_mr", {"-R", "0", "-c"}, print),
              "# OSU MPI Multiple Bandwidth / Message Rate Test v7.5\n"
              "# [ pairs: 4 ] [ window size: 64 ]\n"
              "# Datatype: MPI_CHAR.\n"
              "# Size                  MB/s        Validation\n"
              "1                       8.36              Pass\n");
}

TEST(OsuPrinter, VariedWindows) {
    EXPECT_EQ(output("mbw_mr", {"-V"},
                     [](Printer& printer) {
                         printer.header({.pairs = 1, .window_size = 64});
                         const std::vector<int> windows = {1, 128};
                         const std::vector<std::vector<Measurement>> rows = {
                             {bandwidth(1, 2.5, 2500000), bandwidth(1, 3, 3000000)},
                             {bandwidth(1048576, 9000, 8583.07), bandwidth(1048576, 10000, 9536.74)}};
                         printer.varied_windows_head(windows);
                         for (const std::vector<Measurement>& row : rows) {
                             printer.varied_windows_row(row);
                         }
                         printer.varied_windows_rates(windows, rows);
                     }),
              "# OSU MPI Multiple Bandwidth / Message Rate Test v7.5\n"
              "# [ pairs: 1 ] [ window size: varied ]\n"
              "\n"
              "# Uni-directional Bandwidth (MB/sec)\n"
              "# Datatype: MPI_CHAR.\n"
              "#                 1         128\n"
              "1              2.50        3.00\n"
              "1048576     9000.00    10000.00\n"
              "\n"
              "# Message Rate Profile\n"
              "#                 1         128\n"
              "1        2500000.00  3000000.00\n"
              "1048576     8583.07     9536.74\n");
}

TEST(OsuPrinter, AllreduceInFull) {
    EXPECT_EQ(output("allreduce", {"-f", "-c", "-z", "-d", "cuda"},
                     [](Printer& printer) {
                         printer.header({.type = ElementType::int_});
                         Measurement row = latency(4, 136.08);
                         row.minimum = 99.29;
                         row.maximum = 164.85;
                         row.iterations = 1000;
                         row.percentiles = {130, 150, 160};
                         printer.row(row);
                     }),
              "\n"
              "# OSU MPI-CUDA Allreduce Latency Test v7.5\n"
              "# Datatype: MPI_INT.\n"
              "# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations        Validation"
              "  P50 Tail Lat(us)  P90 Tail Lat(us)  P99 Tail Lat(us)\n"
              "4                     136.08             99.29            164.85        1000              Pass"
              "            130.00            150.00            160.00\n");
}

TEST(OsuPrinter, OneSidedTestsBeginWithoutAnEmptyLineAndSayHow) {
    const auto print = [](Printer& printer) {
        printer.header({});
        printer.row(latency(1, 0.4));
    };
    EXPECT_EQ(output("put_latency", {}, print),
              "# OSU MPI_Put Latency Test v7.5\n"
              "# Window creation: MPI_Win_allocate\n"
              "# Synchronization: MPI_Win_flush\n"
              "# Datatype: MPI_CHAR.\n"
              "# Size          Latency (us)\n"
              "1                       0.40\n");
    EXPECT_EQ(output("get_latency", {"-w", "create", "-s", "lock_all", "-d", "rocm", "D", "M", "-z50"},
                     [](Printer& printer) {
                         printer.header({});
                         Measurement row = latency(4194304, 123);
                         row.percentiles = {120};
                         printer.row(row);
                     }),
              "# OSU MPI_Get-ROCM latency Test v7.5\n"
              "# Window creation: MPI_Win_create\n"
              "# Synchronization: MPI_Win_lock_all/unlock_all\n"
              "# Datatype: MPI_CHAR.\n"
              "# Rank 0 Memory on DEVICE (D) and Rank 1 Memory on MANAGED (M)\n"
              "# Size          Latency (us)  P50 Tail Lat(us)\n"
              "4194304               123.00            120.00\n");
    EXPECT_EQ(output("get_acc_latency", {}, print),
              "# OSU MPI_Get_accumulate latency Test v7.5\n"
              "# Window creation: MPI_Win_create\n"
              "# Synchronization: MPI_Win_lock/unlock\n"
              "# Size          Latency (us)\n"
              "1                       0.40\n");
}

TEST(OsuPrinter, OneSidedBandwidths) {
    const auto print = [](Printer& printer) {
        printer.header({.accelerator = kCuda});
        printer.row(bandwidth(1, 12.5));
    };
    EXPECT_EQ(output("put_bibw", {"D", "H"}, print),
              "# OSU MPI_Put-CUDA Bi-directional Bandwidth Test v7.5\n"
              "# Window creation: MPI_Win_allocate\n"
              "# Synchronization: MPI_Win_post/start/complete/wait\n"
              "# Datatype: MPI_CHAR.\n"
              "# Rank 0 Memory on DEVICE (D) and Rank 1 Memory on HOST (H)\n"
              "# Size      Bandwidth (MB/s)\n"
              "1                      12.50\n");
    EXPECT_EQ(output("get_bw", {"-s", "flush_local", "-w", "dynamic", "--omb-version", "7.0", "D", "D"}, print),
              "# OSU MPI_Get-CUDA Bandwidth Test v7.0\n"
              "# Window creation: MPI_Win_create_dynamic\n"
              "# Synchronization: MPI_Win_flush_local\n"
              "# Rank 0 Memory on DEVICE (D) and Rank 1 Memory on DEVICE (D)\n"
              "# Size      Bandwidth (MB/s)\n"
              "1                      12.50\n");
}

TEST(OsuPrinter, AtomicTestsRepeatTheirTitleForEachTypeAndSayPassed) {
    EXPECT_EQ(output("acc_latency", {"-c", "-T", "mpi_char,mpi_int", "-s", "fence"},
                     [](Printer& printer) {
                         printer.header({.type = ElementType::char_});
                         printer.row(latency(1, 2));
                         printer.header({.type = ElementType::int_, .first = false});
                         Measurement wrong = latency(4, 3);
                         wrong.errors = 1;
                         printer.row(wrong);
                         printer.end();
                     }),
              "# OSU MPI_Accumulate latency Test v7.5\n"
              "# Window creation: MPI_Win_allocate\n"
              "# Synchronization: MPI_Win_fence\n"
              "# Datatype: MPI_CHAR.\n"
              "# Size          Latency (us)        Validation\n"
              "1                       2.00            passed\n"
              "# OSU MPI_Accumulate latency Test v7.5\n"
              "# Window creation: MPI_Win_allocate\n"
              "# Synchronization: MPI_Win_fence\n"
              "# Datatype: MPI_INT.\n"
              "# Size          Latency (us)        Validation\n"
              "4                       3.00            failed\n"
              "DATA VALIDATION ERROR: osu_acc_latency exited with status 1 on message size 4.\n");
}

TEST(OsuPrinter, SeveralTypesRepeatOnlyTheColumns) {
    EXPECT_EQ(output("alltoall", {"-T", "mpi_char,mpi_float"},
                     [](Printer& printer) {
                         printer.header({.type = ElementType::char_});
                         printer.row(latency(1, 1.5));
                         printer.header({.type = ElementType::float_, .first = false});
                         printer.row(latency(4, 2.5));
                     }),
              "\n"
              "# OSU MPI All-to-All Personalized Exchange Latency Test v7.5\n"
              "# Datatype: MPI_CHAR.\n"
              "# Size       Avg Latency(us)\n"
              "1                       1.50\n"
              "# Datatype: MPI_FLOAT.\n"
              "# Size       Avg Latency(us)\n"
              "4                       2.50\n");
}

TEST(OsuPrinter, BarrierHasOneRowAndNoSize) {
    EXPECT_EQ(output("barrier", {},
                     [](Printer& printer) {
                         printer.header({});
                         printer.row(latency(0, 1.25));
                     }),
              "\n"
              "# OSU MPI Barrier Latency Test v7.5\n"
              "# Avg Latency(us)\n"
              "             1.25\n");
    EXPECT_EQ(output("barrier_persistent", {"-f"},
                     [](Printer& printer) {
                         printer.header({});
                         Measurement row = latency(0, 1.25);
                         row.minimum = 1;
                         row.maximum = 1.5;
                         row.iterations = 1000;
                         printer.row(row);
                     }),
              "\n"
              "# OSU MPI Barrier Persistent Latency Test v7.5\n"
              "# Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations\n"
              "             1.25              1.00              1.50        1000\n");
}

Measurement overlapped(std::size_t size) {
    Measurement measurement = latency(size, 0);
    measurement.overlap = OverlapTimes{.overall = 20.5,
                                       .compute = 11,
                                       .initiate = 2,
                                       .test = 0.5,
                                       .wait = 7,
                                       .pure = 10.25,
                                       .pure_minimum = 9,
                                       .pure_maximum = 12,
                                       .overlap_percent = 7.31};
    return measurement;
}

TEST(OsuPrinter, Nonblocking) {
    const auto print = [](Printer& printer) {
        printer.header({.type = ElementType::int_});
        printer.row(overlapped(4));
    };
    EXPECT_EQ(output("iallreduce", {"-d", "cuda"}, print),
              "\n"
              "# OSU MPI-CUDA Non-blocking Allreduce Latency Test v7.5\n"
              "# Overall = Coll. Init + Compute + MPI_Test + MPI_Wait\n"
              "\n"
              "# Datatype: MPI_INT.\n"
              "# Size           Overall(us)       Compute(us)    Pure Comm.(us)        Overlap(%)\n"
              "4                      20.50             11.00             10.25              7.31\n");
    EXPECT_EQ(output("iallreduce", {"-f"}, print),
              "\n"
              "# OSU MPI Non-blocking Allreduce Latency Test v7.5\n"
              "# Overall = Coll. Init + Compute + MPI_Test + MPI_Wait\n"
              "\n"
              "# Datatype: MPI_INT.\n"
              "# Size           Overall(us)       Compute(us)    Coll. Init(us)      MPI_Test(us)      MPI_Wait(us)"
              "    Pure Comm.(us)     Min Comm.(us)     Max Comm.(us)        Overlap(%)\n"
              "4                      20.50             11.00              2.00              0.50              7.00"
              "             10.25              9.00             12.00              7.31\n");
}

TEST(OsuPrinter, NonblockingBarrier) {
    EXPECT_EQ(output("ibarrier", {},
                     [](Printer& printer) {
                         printer.header({});
                         printer.row(overlapped(0));
                     }),
              "\n"
              "# OSU MPI Non-blocking Barrier Latency Test v7.5\n"
              "# Overall = Coll. Init + Compute + MPI_Test + MPI_Wait\n"
              "\n"
              "# Overall(us)       Compute(us)    Pure Comm.(us)        Overlap(%)\n"
              "        20.50             11.00             10.25              7.31\n");
}

TEST(OsuPrinter, Neighborhood) {
    EXPECT_EQ(output("neighbor_allgather", {},
                     [](Printer& printer) {
                         printer.header({.dimensions = {2, 3}, .topology_us = 12.345});
                         printer.row(latency(1, 1));
                     }),
              "Dimensions size = 2 3 \n"
              "Time took to create topology graph:12.35 us.\n"
              "\n"
              "# OSU MPI Neighborhood Allgather Latency Test v7.5\n"
              "# Datatype: MPI_CHAR.\n"
              "# Size       Avg Latency(us)\n"
              "1                       1.00\n");
}

TEST(OsuPrinter, ThreadsAndProcesses) {
    EXPECT_EQ(output("latency_mt", {"-t", "2:3"},
                     [](Printer& printer) {
                         printer.header({});
                         printer.row(latency(1, 1));
                     }),
              "# Number of Sender threads: 2 \n"
              "# Number of Receiver threads: 3\n"
              "\n"
              "# OSU MPI Multi-threaded Latency Test v7.5\n"
              "# Datatype: MPI_CHAR.\n"
              "# Size       Avg Latency(us)\n"
              "1                       1.00\n");
    EXPECT_EQ(output("latency_mp", {},
                     [](Printer& printer) {
                         printer.header({});
                         printer.row(latency(1, 1));
                     }),
              "# Number of forked processes in sender: 2\n"
              "# Number of forked processes in receiver: 2\n"
              "\n"
              "# OSU MPI Multi-process Latency Test v7.5\n"
              "# Datatype: MPI_CHAR.\n"
              "# Size       Avg Latency(us)\n"
              "1               1.00\n")
        << "the narrow column is OMB's";
}

TEST(OsuPrinter, Startup) {
    EXPECT_EQ(output("init", {},
                     [](Printer& printer) {
                         printer.header({.ranks = 4});
                         Measurement row;
                         row.minimum = 101900;
                         row.maximum = 250000;
                         row.average = 150500;
                         printer.row(row);
                         printer.end();
                     }),
              "# OSU MPI Init Test v7.5\n"
              "nprocs: 4, min: 101 ms, max: 250 ms, avg: 150 ms\n");
    EXPECT_EQ(output("hello", {},
                     [](Printer& printer) {
                         printer.header({.ranks = 4});
                         printer.row({});
                     }),
              "# OSU MPI Hello World Test v7.5\n"
              "This is a test with 4 processes\n");
}

TEST(OsuPrinter, Version70) {
    EXPECT_EQ(output("bw", {"--omb-version", "7.0", "D", "D"},
                     [](Printer& printer) {
                         printer.header({.accelerator = Accelerator::rocm});
                         printer.row(bandwidth(16777216, 142341.39));
                     }),
              "# OSU MPI-ROCM Bandwidth Test v7.0\n"
              "# Send Buffer on DEVICE (D) and Receive Buffer on DEVICE (D)\n"
              "# Size      Bandwidth (MB/s)\n"
              "16777216           142341.39\n");
    EXPECT_EQ(output("latency", {"--omb-version", "7.0", "MD", "H"},
                     [](Printer& printer) {
                         printer.header({.accelerator = kCuda});
                         printer.row(latency(1, 1));
                     }),
              "# OSU MPI-CUDA Latency Test v7.0\n"
              "# Send Buffer on MANAGED (MD) and Receive Buffer on HOST (H)\n"
              "# Size          Latency (us)\n"
              "1                       1.00\n");
    EXPECT_EQ(output("latency", {"--omb-version", "7.0"}, [](Printer& printer) { printer.header({}); }),
              "# OSU MPI Latency Test v7.0\n"
              "# Size          Latency (us)\n");
    EXPECT_EQ(output("allreduce", {"--omb-version", "7.0", "-f"}, [](Printer& printer) { printer.header({}); }),
              "\n"
              "# OSU MPI Allreduce Latency Test v7.0\n"
              "# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations\n");
}

TEST(OsuPrinter, SizesBeyondFourGigabytes) {
    EXPECT_EQ(output("latency", {}, [](Printer& printer) { printer.row(latency(std::size_t{8} << 30, 1)); }),
              "8589934592              1.00\n");
}

}  // namespace
}  // namespace awaken::bench
