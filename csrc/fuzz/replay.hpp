// Runs the fuzz target of this program over its stored corpus, for compilers without a fuzzer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace fedbench::fuzz {

// The number of inputs; a target that finds a fault ends the program, so each is named before.
inline int replay(const std::string& topic) {
    int files = 0;
    const std::filesystem::path corpus = FEDBENCH_FUZZ_CORPUS;
    for (const auto& entry : std::filesystem::directory_iterator(corpus / topic)) {
        std::printf("%s\n", entry.path().c_str());
        std::fflush(stdout);
        std::ifstream file(entry.path(), std::ios::binary);
        const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
        LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
        ++files;
    }
    return files;
}

}  // namespace fedbench::fuzz
