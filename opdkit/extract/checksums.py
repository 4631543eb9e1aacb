"""Check digits of payment cards, bank accounts and Chinese identity cards.

One in ten random numbers passes as a card number, and one in 97 as an IBAN. So a pattern of the kind must match first.
"""

_CHINESE_WEIGHTS = (7, 9, 10, 5, 8, 4, 2, 1, 6, 3, 7, 9, 10, 5, 8, 4, 2)


def is_card(text: str) -> bool:
    """Return True if the Luhn check digit holds (ISO/IEC 7812-1) and the digits are not all equal.

    Luhn: with every second digit from the right doubled, the sum of all digits ends in 0.
    """
    digits = [int(digit) for digit in text if digit.isdecimal()]
    doubled = sum(sum(divmod(2 * digit, 10)) for digit in digits[-2::-2])
    return len(set(digits)) > 1 and (sum(digits[-1::-2]) + doubled) % 10 == 0


def is_iban(text: str) -> bool:
    """Return True if the check digits hold (ISO 13616): with the first four characters moved last, it is 1 mod 97."""
    compact = "".join(text.split()).upper()
    return int("".join(str(int(char, 36)) for char in compact[4:] + compact[:4])) % 97 == 1


def is_chinese_id(text: str) -> bool:
    """Return True if the last of 18 characters is the check digit of the others (GB 11643, ISO 7064 MOD 11-2)."""
    weighted = zip(text, _CHINESE_WEIGHTS, strict=False)
    return "10X98765432"[sum(int(digit) * weight for digit, weight in weighted) % 11] == text[-1].upper()
